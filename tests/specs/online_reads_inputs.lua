-- A softmax with a temperature, a learned sink as the initial row state, and a factor per row.
return attention {
  scalars = { t = 1.25 },
  inputs = {
    sink = { axes = {"h"}, grad = true },
    factor = { axes = {"q"}, grad = true },
  },
  online_func = {
    online_rowscales = { m = function(b, h) return sink[h] end, l = 1 },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local s = scores * t
      local m = max(rowscales.m, reduce_max(s))
      local c = exp(rowscales.m - m)
      local p = exp(s - m)
      return p, { m = m, l = rowscales.l * c + reduce_sum(p) }, c
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      return o / rowscales.l * factor[q_idx], { lse = rowscales.m + log(rowscales.l) }
    end,
    final_rowscales = { "lse" },
  },
}
