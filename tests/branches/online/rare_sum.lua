-- A normaliser that moves only with a positive sum in the arm of small w, which few rows have.
return attention {
  inputs = { w = { axes = {"h"}, grad = true } },
  online_func = {
    name = "rare_sum",
    online_rowscales = { l = 0 },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local p = where(scores * w[h] > 0.2, log(scores * w[h]), w[h])
      return p, { l = rowscales.l + reduce_sum(p) }
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      return o * where(w[h] > 0.3, 0.5 / w[h], relu(rowscales.l))
    end,
  },
}
