-- expect: grid_axis_twice.lua:3: attention: grid has two axes 'x'; give each its own name
return attention {
  grid = {"x", "x"},
}
