-- expect: online_states_missing.lua:6: online_fwd: the second result is nil; return a table of new row scalars such as { l = .. }
return attention {
  online_func = {
    online_rowscales = { m = -math.huge, l = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      return exp(scores)
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      return o / rowscales.l, { lse = log(rowscales.l) }
    end,
  },
}
