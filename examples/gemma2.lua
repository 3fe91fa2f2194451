-- Soft-capped scores in a causal sliding window.
--   cap * tanh(s / cap),   keep  q - W < kv <= q
-- Gemma 2 (Google 2024): cap = 50, and W = 4096 in every other layer. cap is a scalar: changing it recompiles
-- nothing, and it has a gradient.
local W = 4096
return attention {
  name = "gemma2",
  scalars = { cap = 50.0 },
  score_mod = function(score, b, h, q_idx, kv_idx) return cap * tanh(score / cap) end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx and q_idx - kv_idx < W end,
}
