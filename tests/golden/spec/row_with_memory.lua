-- expect: row_with_memory.lua:7: online_rowscales: gives another result when it is called again; a hook must not keep anything between calls, nor go by the order of pairs, so use its arguments, inputs, scalars and locals
local n = 0
return attention {
  online_func = {
    online_rowscales = {
      l = 0,
      m = function(b, h)
        n = n - 1
        return n
      end,
    },
    online_fwd = function(scores, rowscales, b, h, q_idx) return scores * rowscales.m end,
  },
}
