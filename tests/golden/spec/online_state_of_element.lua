-- expect: online_state_of_element.lua:6: online_fwd: new row scalar 'l' depends on one element of the row; use reduce_sum or reduce_max
return attention {
  online_func = {
    online_rowscales = { m = -math.huge, l = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      return exp(scores), { l = rowscales.l + exp(scores) }
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      return o / rowscales.l, { lse = log(rowscales.l) }
    end,
  },
}
