-- expect: hook_parameters_too_many.lua:3: mask_mod: the function has 5 parameters, but is called with (b, h, q_idx, kv_idx); declare no more than these
return attention {
  mask_mod = function(score, b, h, q_idx, kv_idx) return kv_idx <= q_idx end,
}
