-- expect: grid_bare_arithmetic.lua:5: -: q_idx is a place on the grid (y, x), and no number; write q_idx.y and q_idx.x
return attention {
  grid = {"y", "x"},
  block_mask = function(b, h, q_idx, kv_idx)
    return q_idx - kv_idx.y < 3
  end,
}
