-- softpick: p = relu(exp(s) - 1) / (sum |exp(s) - 1| + eps), with a running maximum of at least 0. Zuhri et
-- al. 2025. eps is scaled like the row, so that the maximum drops out of the derivative.
return attention {
  name = "softpick",
  block_mask = causal(),
  online_func = {
    name = "softpick",
    online_rowscales = { m = 0, l = 0 },
    final_rowscales = { "m", "l" },
    online_fwd = function(scores, rowscales)
      local m = max(rowscales.m, reduce_max(scores))
      local shift = exp(rowscales.m - m)
      local e = exp(scores - m) - exp(-m)
      return relu(e), { m = m, l = rowscales.l * shift + reduce_sum(abs(e)) }, shift
    end,
    online_fwd_epilogue = function(o, rowscales)
      return o / (rowscales.l + 1e-6 * exp(-rowscales.m)), { m = rowscales.m, l = rowscales.l }
    end,
  },
}
