-- expect: grid_axis_by_number.lua:5: kv_idx is indexed by a number; its axes have names: write kv_idx.y and kv_idx.x
return attention {
  grid = {"y", "x"},
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx[1] < 3
  end,
}
