-- A term that is NaN where the mask drops the pair, times a learned number.
return attention {
  inputs = { t = { axes = {"h", "n"}, grad = true }, w = { axes = {"h"}, grad = true } },
  score_mod = function(score, b, h, q, kv) local n = q - kv
    return score + log(n) * t[{h, n}] * w[h] end,
  block_mask = function(b, h, q, kv) return q - kv > 0 end,
}
