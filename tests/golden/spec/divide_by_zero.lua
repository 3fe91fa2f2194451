-- expect: divide_by_zero.lua:4: //: an integer is divided by zero; divide by max(n, 1)
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx // 0 < 1
  end,
}
