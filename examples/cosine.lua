-- Cosine attention with a learned temperature for each head.
--   s = cos(q, k) * min(exp(logit_scale[h]), 100)
-- Swin Transformer V2 (Liu et al. 2022). Pass q and k normalised to length one and scale = 1: then |s| <= 100, and a
-- normalisation over channels, which no elementwise mod can do, stays outside.
return attention {
  name = "cosine",
  inputs = { logit_scale = { axes = {"h"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return clamp(score, -1, 1) * min(exp(logit_scale[h]), 100)
  end,
}
