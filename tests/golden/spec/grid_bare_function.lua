-- expect: grid_bare_function.lua:5: abs: q_idx is a place on the grid (y, x), and no number; write q_idx.y and q_idx.x
return attention {
  grid = {"y", "x"},
  block_mask = function(b, h, q_idx, kv_idx)
    return abs(q_idx) < 3
  end,
}
