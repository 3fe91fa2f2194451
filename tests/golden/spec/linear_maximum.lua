-- expect: linear_maximum.lua:4: reduce_max: linear_attention's hooks have sums over the row's channels alone; write reduce_sum(x)
return linear_attention {
  name    = "maximum",
  key_mod = function(x) return x / reduce_max(abs(x)) end,
}
