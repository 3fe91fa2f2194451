-- expect: grid_input_along_line.lua:4: input 't': axis 'q' is that of positions along a line, and the spec has the grid (y, x); write q.y and q.x
return attention {
  grid = {"y", "x"},
  inputs = { t = { axes = {"q"} } },
}
