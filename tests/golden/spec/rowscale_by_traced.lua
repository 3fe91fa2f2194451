-- expect: rowscale_by_traced.lua:6: there is no row scalar 'a traced number' in online_rowscales
return attention {
  online_func = {
    online_rowscales = { m = 0 },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      return scores * (rowscales[q_idx] or 1), { m = 1 }
    end,
  },
}
