-- Cosine attention with a learned temperature for each head.
--   s = cos(q, k) * min(exp(logit_scale[h]), 100)
-- Swin Transformer V2 (Liu et al. 2022). Pass q and k normalised to unit length, and scale = 1. The
-- normalisation runs over channels, which no elementwise mod can do; the min lets the compiler bound s.
return attention {
  name = "cosine",
  inputs = { logit_scale = { axes = {"h"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return clamp(score, -1, 1) * min(exp(logit_scale[h]), 100)
  end,
}
