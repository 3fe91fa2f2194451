-- expect: online_scale_of_element.lua:6: online_fwd: o_scale depends on one element of the row; make it of row scalars and reductions
return attention {
  online_func = {
    online_rowscales = { m = -math.huge, l = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      return exp(scores), {}, scores
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      return o / rowscales.l, { lse = log(rowscales.l) }
    end,
  },
}
