-- Gradients with factors that are constant per head: products, quotients, signs and conditions. Mods and
-- rows use the same inputs, so that one gradient element gets several sums.
return attention {
  name = "shared_factors",
  scalars = { c = 0.7, d = 1.3 },
  inputs = { t = { axes = {"h"}, grad = true }, u = { axes = {"h"}, grad = true } },
  query_mod = function(x, b, h, pos, channel) return x * (1 + 0.1 * c) + 0.01 * t[h] end,
  score_mod = function(score, b, h, q_idx, kv_idx)
    local bounded = where(u[h] > 0, 0, exp(u[h]))
    return score * min(exp(c), 100) - tanh(score / (2 + t[h] * t[h])) + score * bounded / (d * d + 1) + d * sin(0.1 * q_idx)
  end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end,
}
