-- expect: linear_axis_of_attention.lua:4: input 'g': axis 'kv' is written 't'
return linear_attention {
  name   = "axes",
  inputs = { g = { axes = {"b", "kv", "hv"} } },
  decay  = function(b, h, t) return g[{b, t, h}] end,
}
