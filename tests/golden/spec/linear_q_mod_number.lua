-- expect: linear_q_mod_number.lua:4: linear_attention: q_mod is 2; it must be a function(x, custom_io)
return linear_attention {
  name  = "engine",
  q_mod = 2,
}
