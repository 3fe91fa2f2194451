-- expect: online_affine.lua:9: online_fwd_epilogue: o must come back multiplied or divided by numbers of the row, as in o / rowscales.l; what is returned is not a multiple of o
return attention {
  online_func = {
    online_rowscales = { m = -math.huge, l = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      return exp(scores), {}
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      return o + rowscales.l, { lse = 0 }
    end,
  },
}
