-- expect: axes_with_hole.lua:3: input 'x': axes has the entry [3]; list the axes in order, as in axes = {"h", "q"}
return attention {
  inputs = { x = { axes = { [3] = "q" } } },
}
