-- Gradients whose elements are adjacent in memory; indices past the table's end are clamped. Also one
-- with a factor that is linear in both positions.
return attention {
  inputs = {
    t = { axes = {"h", 700}, grad = true },
    u = { axes = {"h"} },
    w = { axes = {"h"}, grad = true },
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + u[h] * t[{h, kv_idx - q_idx + 100}] + w[h] * (0.001 * (3 * kv_idx - 2 * q_idx))
  end,
  block_mask = sliding_window(300, 400),
}
