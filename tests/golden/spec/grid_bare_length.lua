-- expect: grid_bare_length.lua:5: comparison: q_len is a place on the grid (y, x), and no number; write q_len.y and q_len.x
return attention {
  grid = {"y", "x"},
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx.y < q_len
  end,
}
