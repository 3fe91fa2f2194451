-- The gradient of c is NaN for every masked score. Kernels may evaluate the gradient there, but must drop
-- the result.
return attention {
  name = "dropped_nan",
  scalars = { c = 2.0 },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return c * tanh(score / c) * log(q_idx - kv_idx + 1.5)
  end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end,
}
