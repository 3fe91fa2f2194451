-- expect: online_initial_value.lua:2: online_rowscales: the initial value of 'm' is a string; it must be a number or a function(b, h)
return attention {
  online_func = {
    online_rowscales = { m = "-inf" },
    online_fwd = function(scores, rowscales, b, h, q_idx) return scores, rowscales end,
  },
}
