-- expect: grid_is_empty.lua:3: attention: grid has 0 axes; 1 to 4 are possible: name its axes, the last one innermost, as in grid = {"y", "x"}
return attention {
  grid = {},
}
