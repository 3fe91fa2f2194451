-- expect: channel_constant_float.lua:3: x[..]: the channel is the float 1.500000; channels are integers, so use // or floor()
return attention {
  query_mod = function(x, b, h, pos, d) return x[1.5] end,
}
