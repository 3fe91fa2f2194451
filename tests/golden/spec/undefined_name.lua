-- expect: undefined_name.lua:4: undefined name 'kv_index'; did you mean 'kv_idx'?
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_index <= q_idx
  end,
}
