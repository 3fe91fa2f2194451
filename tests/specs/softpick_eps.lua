-- softpick with an unscaled eps: p = relu(exp(s - m) - exp(-m)) / (sum |exp(s - m) - exp(-m)| + eps). The result depends on the
-- maximum m itself, whose derivative goes to one score of the row, which a row pass finds.
return attention {
  name = "softpick_eps",
  block_mask = causal(),
  online_func = {
    name = "softpick_eps",
    online_rowscales = { m = 0, l = 0 },
    online_fwd = function(scores, rowscales)
      local m = max(rowscales.m, reduce_max(scores))
      local shift = exp(rowscales.m - m)
      local e = exp(scores - m) - exp(-m)
      return relu(e), { m = m, l = rowscales.l * shift + reduce_sum(abs(e)) }, shift
    end,
    online_fwd_epilogue = function(o, rowscales)
      return o / (rowscales.l + 1e-6)
    end,
  },
}
