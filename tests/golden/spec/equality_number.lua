-- expect: equality_number.lua:4: == cannot be traced (beside a number it is always false); write eq(kv_idx, 3)
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx == 3
  end,
}
