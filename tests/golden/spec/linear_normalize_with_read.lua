-- expect: linear_normalize_with_read.lua:5: linear_attention: normalize with update.read: what is erased leaves no sum of weights to divide by; leave one of them out
return linear_attention {
  name      = "normalised",
  update    = delta_rule(0.5),
  normalize = true,
}
