-- expect: online_finals_missing.lua:9: online_fwd_epilogue: the second result is nil; return a table of final row scalars such as { lse = .. }
return attention {
  online_func = {
    online_rowscales = { m = -math.huge, l = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      return exp(scores), {}
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      return o
    end,
  },
}
