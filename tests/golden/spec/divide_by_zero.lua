-- expect: divide_by_zero.lua:4: //: an integer is divided by zero
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx // 0 < 1
  end,
}
