-- expect: linear_scale.lua:4: linear_attention: scale is 0; give a finite number other than 0, or leave it out for K^-1/2
return linear_attention {
  name  = "scale",
  scale = 0,
}
