-- expect: argument_of_another_hook.lua:3: undefined name 'score': it is no argument of mask_mod, which is called with (b, h, q_idx, kv_idx)
return attention {
  mask_mod = function(b, h, q_idx, kv_idx) return score > 0 end,
}
