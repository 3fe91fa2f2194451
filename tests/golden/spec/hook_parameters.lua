-- expect: hook_parameters.lua:3: block_mask: parameter 1 of the function is 'q_idx', but the hook is called with (b, h, q_idx, kv_idx); only parameters at the end may be left out
return attention {
  block_mask = function(q_idx, kv_idx) return kv_idx <= q_idx end,
}
