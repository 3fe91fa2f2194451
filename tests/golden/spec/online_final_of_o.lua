-- expect: online_final_of_o.lua:7: online_fwd_epilogue: final row scalar 'lse' is made of o, which is a row of numbers; make it of rowscales
return attention {
  online_func = {
    online_rowscales = { m = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx) return scores, { m = 1 }, 1 end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx) return o, { lse = rowscales.m + o } end,
  },
}
