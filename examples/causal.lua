-- Causal attention: a query sees the keys up to its own position.
--   keep  kv <= q        (top-left: the first query sees only the first key)
-- Vaswani et al. 2017; torch's is_causal. For a KV cache (q_len < kv_len), see causal_bottom_right.lua.
return attention {
  name = "causal",
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end,
}
