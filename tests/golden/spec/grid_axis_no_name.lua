-- expect: grid_axis_no_name.lua:3: attention: grid has the axis 2, which is no name; use letters, digits and _
return attention {
  grid = {"x", 2},
}
