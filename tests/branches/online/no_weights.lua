-- If w is at most 0.2, all P of the row are 0, and the square root in the other arm is NaN.
return attention {
  inputs = { w = { axes = {"h"}, grad = true } },
  scalars = { c = 0.75 },
  online_func = {
    name = "no_weights",
    online_rowscales = { l = 0 },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local p = 0.0
      if w[h] > 0.2 then p = w[h] ^ 1.5 - c end
      return p, { l = rowscales.l + reduce_sum(abs(p)) }
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx) return o / (rowscales.l + 1) end,
  },
}
