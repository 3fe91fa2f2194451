-- expect: grid_assigned.lua:5: q_idx: one of its axes is assigned; a hook reads positions and returns its result
return attention {
  grid = {"y", "x"},
  block_mask = function(b, h, q_idx, kv_idx)
    return (function() q_idx.y = 1 end)() == nil
  end,
}
