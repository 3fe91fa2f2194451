-- Three guards: sqrt of the positive part, log of a distance that may be 0, sqrt of a learned number.
return attention {
  name = "guarded_terms",
  inputs = { w = { axes = {"h"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local d = abs(q_idx - kv_idx)
    local root = where(score > 0, sqrt(score), 0)
    return root + where(d > 0, w[h] * log(d) / d, 0) + where(d > 2, abs(w[h]) ^ 0.5, 0)
  end,
}
