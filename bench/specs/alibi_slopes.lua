-- ALiBi with learned slopes.
--   s + slopes[h] (kv - q),   causal
-- Press et al. 2022 use fixed slopes; examples/alibi.lua computes them.
return attention {
  name = "alibi_slopes",
  inputs = { slopes = { axes = {"h"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + slopes[h] * (kv_idx - q_idx) end,
  block_mask = causal(),
}
