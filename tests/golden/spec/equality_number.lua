-- expect: equality_number.lua:4: == is always false between a traced value and a number; write eq(kv_idx, 3)
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx == 3
  end,
}
