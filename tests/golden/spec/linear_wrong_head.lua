-- expect: linear_wrong_head.lua:5: input 'scale_of': index 1 is the head of q, but its axes are (hv); write scale_of[h * (heads_v // heads)]
return linear_attention {
  name      = "heads",
  inputs    = { scale_of = { axes = {"hv"} } },
  query_mod = function(x, b, h) return x * scale_of[h] end,
}
