-- expect: channel_float.lua:3: x[..]: the channel is a float expression; channels are integers, so use // or floor()
return attention {
  key_mod = function(x, b, h, pos, d) return x[d / 2] end,
}
