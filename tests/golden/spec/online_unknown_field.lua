-- expect: online_unknown_field.lua:5: online_func: unknown field 'epilogue'; its fields are name, online_rowscales, final_rowscales, online_fwd, online_fwd_epilogue, forward, backward
return attention {
  online_func = {
    online_fwd = function(scores, rowscales, b, h, q_idx) return scores end,
    epilogue = function(o, rowscales, b, h, q_idx) return o end,
  },
}
