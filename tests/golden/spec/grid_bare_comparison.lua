-- expect: grid_bare_comparison.lua:5: comparison: kv_idx is a place on the grid (y, x), and no number; write kv_idx.y and kv_idx.x
return attention {
  grid = {"y", "x"},
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx <= q_idx
  end,
}
