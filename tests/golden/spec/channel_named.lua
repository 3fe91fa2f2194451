-- expect: channel_named.lua:3: a traced number has no 'T'; functions stand in front, as in tanh(x)
return attention {
  query_mod = function(x, b, h, pos, d) return x.T end,
}
