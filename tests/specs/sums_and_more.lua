-- A gradient that is a sum of dS along diagonals, and one to which each element adds separately.
return attention {
  inputs = { t = { axes = {"n"}, grad = true }, u = { axes = {"h"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + t[abs(q_idx - kv_idx)] + 0.1 * u[h] * sin(q_idx * kv_idx)
  end,
  block_mask = causal_bottom_right(),
}
