-- expect: online_p_missing.lua:6: online_fwd: p: returned nil; return a number
return attention {
  online_func = {
    online_rowscales = { m = -math.huge, l = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local p = exp(scores)
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      return o / rowscales.l, { lse = log(rowscales.l) }
    end,
  },
}
