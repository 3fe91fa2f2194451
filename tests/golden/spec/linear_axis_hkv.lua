-- expect: linear_axis_hkv.lua:4: input 'A': axis 'hkv' is written 'hv'
return linear_attention {
  name   = "axes",
  inputs = { A = { axes = {"hkv"} } },
  decay  = function(b, h, t) return A[h] end,
}
