-- expect: online_state_misspelt.lua:7: there is no row scalar 'n' in online_rowscales
return attention {
  online_func = {
    online_rowscales = { m = -math.huge, l = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      return exp(scores - rowscales.n), {}
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      return o / rowscales.l, { lse = log(rowscales.l) }
    end,
  },
}
