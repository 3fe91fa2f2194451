-- Causal attention, bottom-right aligned: the last query sees the last key.
--   keep  kv <= q + kv_len - q_len
-- FlashAttention since 2.1. If q_len > kv_len, the first q_len - kv_len rows keep nothing and give zero.
return attention {
  name = "causal_bottom_right",
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx + kv_len - q_len end,
}
