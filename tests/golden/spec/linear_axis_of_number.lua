-- expect: linear_axis_of_number.lua:4: input 'A': an axis is a boolean; it must be "b", "t", "h", "hv", "d", "dv", a size, or another name for any size
return linear_attention {
  name   = "axes",
  inputs = { A = { axes = {true} } },
  decay  = function(b, h, t) return A[h] end,
}
