-- expect: channel_of_input.lua:4: x[..]: the channel depends on an input; compute it from d and head_dim alone, as in x[d ~ 1]
return attention {
  inputs = { order = { axes = {"channel"}, dtype = "i32" } },
  query_mod = function(x, b, h, pos, d) return x[order[d]] end,
}
