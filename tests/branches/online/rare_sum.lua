-- A normaliser that depends on the sum only in the arm for small w, which few rows take.
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
