-- expect: channel_of_position.lua:3: x[..]: the channel depends on pos; compute it from d and head_dim alone, as in x[d ~ 1]
return attention {
  query_mod = function(x, b, h, pos, d) return x[(d + pos) % head_dim] end,
}
