-- expect: hook_parameters.lua:3: block_mask: the function has 2 parameters, but is called with (b, h, q_idx, kv_idx); declare exactly these
return attention {
  block_mask = function(q_idx, kv_idx) return kv_idx <= q_idx end,
}
