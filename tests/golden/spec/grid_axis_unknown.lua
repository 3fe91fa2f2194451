-- expect: grid_axis_unknown.lua:5: kv_idx has no axis 'colum'; the grid has row, column; did you mean 'column'?
return attention {
  grid = {"row", "column"},
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx.colum < 3
  end,
}
