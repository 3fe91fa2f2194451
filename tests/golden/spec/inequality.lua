-- expect: inequality.lua:5: ~= cannot be traced (beside a number it is always true); write ne(d, 0)
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    local d = q_idx - kv_idx
    return d ~= 0
  end,
}
