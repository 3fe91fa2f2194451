-- Two tables by distance under a soft cap and a factor. One is the distance term that grad gets; both
-- have gradients.
return attention {
  inputs = { t = { axes = {"h", "n"}, grad = true }, u = { axes = {"n"}, grad = true }, w = { axes = {"h"}, grad = true } },
  scalars = { c = 2.0 },
  score_mod = function(score, b, h, q, kv)
    return c * tanh((w[h] * score + t[{h, (q - kv) // 2 + 30}] * u[abs(q - kv)]) / c) + u[max(kv - q, 0)]
  end,
}
