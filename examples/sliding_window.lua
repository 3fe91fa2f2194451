-- Causal attention in a sliding window of W keys, the query's own included.
--   keep  q - W < kv <= q
-- Mistral 7B (Jiang et al. 2023). In FlashAttention, window_size = (W - 1, 0).
local W = 256
return attention {
  name = "sliding_window",
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx and q_idx - kv_idx < W end,
}
