-- expect: grid_input_without_grid.lua:3: input 't': axis 'q.t' is that of a grid, and the spec has none; write 'q', or declare grid = {"t"}
return attention {
  inputs = { t = { axes = {"q.t"} } },
}
