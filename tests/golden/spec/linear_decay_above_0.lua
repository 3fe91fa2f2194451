-- expect: linear_decay_above_0.lua:4: decay: returned 0.9; it is the logarithm of a factor of at most 1, as log(0.9) is: give at most 0
return linear_attention {
  name  = "factor",
  decay = function() return 0.9 end,
}
