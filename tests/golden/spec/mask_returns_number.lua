-- expect: mask_returns_number.lua:3: block_mask: returned a number; return a boolean such as kv_idx <= q_idx
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return where(kv_idx <= q_idx, 1, 0)
  end,
}
