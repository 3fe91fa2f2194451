-- An arm for w below 0.34, which few values of the input take.
return attention {
  inputs = { w = { axes = {"h"}, grad = true } },
  scalars = { c = 0.75 },
  online_func = {
    name = "input_between",
    online_rowscales = { l = 0 },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local a = where(w[h] > 0.2, w[h] ^ 1.5, c)
      local p = where(a > 0.2, a ^ 1.5, 2 * scores)
      return p, { l = rowscales.l + reduce_sum(abs(p)) }
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx) return o / (rowscales.l + 1) end,
  },
}
