-- expect: argument_renamed.lua:3: undefined name 'kv_idx': block_mask is called with (b, h, q_idx, kv_idx), but the function here has (b, h, q, kv); use these names, or hand kv_idx to it
return attention {
  block_mask = function(b, h, q, kv) return kv_idx <= q end,
}
