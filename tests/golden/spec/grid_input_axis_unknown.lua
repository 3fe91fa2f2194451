-- expect: grid_input_axis_unknown.lua:4: input 't' has no axis 't'; the grid has y, x
return attention {
  grid = {"y", "x"},
  inputs = { t = { axes = {"q.t"} } },
}
