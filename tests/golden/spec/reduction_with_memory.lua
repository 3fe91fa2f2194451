-- expect: reduction_with_memory.lua:6: online_fwd: gives another result when it is called again; a hook must not keep anything between calls, nor go by the order of pairs, so use its arguments, inputs, scalars and locals
local n = 0
return attention {
  online_func = {
    online_rowscales = { l = 0 },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      n = n + 1
      return scores, { l = rowscales.l + 0 * reduce_sum(scores + n) }
    end,
  },
}
