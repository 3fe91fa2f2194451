-- expect: linear_random.lua:4: random: linear_attention draws no random numbers; give them as an input with the axes they have
return linear_attention {
  name    = "draws",
  key_mod = function(x, b, h, t, d) return x * random(b, h, t, d) end,
}
