-- expect: grid_bare_in_library.lua:4: comparison: kv_idx is a place on the grid (y, x), and no number; write kv_idx.y and kv_idx.x
return attention {
  grid = {"y", "x"},
  block_mask = causal(),
}
