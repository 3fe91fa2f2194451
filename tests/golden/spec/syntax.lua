-- expect-parts: syntax.lua:4: | expected | near 'scalars'
return attention {
  name = "x"
  scalars = { c = 1 },
}
