-- expect: mask_returns_nothing.lua:3: block_mask: returned nil; return a boolean such as kv_idx <= q_idx
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    if kv_idx <= q_idx then return true end
  end,
}
