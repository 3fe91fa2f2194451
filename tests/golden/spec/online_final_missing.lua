-- expect: online_final_missing.lua:9: online_fwd_epilogue: final row scalar 'lse' is declared in final_rowscales but not returned
return attention {
  online_func = {
    online_rowscales = { m = -math.huge, l = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      return exp(scores), {}
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      return o, {}
    end,
  },
}
