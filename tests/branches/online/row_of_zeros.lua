-- If w is negative, rows without a low score have only P of 0, so no ratio to a P exists.
return attention {
  inputs = { w = { axes = {"h"}, grad = true } },
  scalars = { c = 0.75 },
  online_func = {
    name = "row_of_zeros",
    online_rowscales = { l = 0 },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local p = where(tanh(scores) > -0.5, relu(w[h]), 1.5)
      return p, { l = rowscales.l + reduce_sum(p * p) }
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      return where(rowscales.l > 2, o / sqrt(rowscales.l), o * where(c > 0.5, c, log(-c)))
    end,
  },
}
