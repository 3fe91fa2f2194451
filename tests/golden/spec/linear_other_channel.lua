-- expect: linear_other_channel.lua:4: x[..]: a hook of linear_attention has one channel of its row, and sums over all of them by reduce_sum; permute channels before the call
return linear_attention {
  name    = "pairs",
  key_mod = function(x, b, h, t, d) return x[d ~ 1] end,
}
