-- expect: grid_is_text.lua:3: attention: grid is 'yx'; name its axes, the last one innermost, as in grid = {"y", "x"}
return attention {
  grid = "yx",
}
