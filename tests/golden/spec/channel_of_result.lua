-- expect: channel_of_result.lua:3: a number that value_mod has computed is indexed; only the element that it is given has others beside it, so read x[..] first (in chain, the function that reads x[..] comes first)
return attention {
  value_mod = chain(function(x) return 2 * x end, function(x, b, h, pos, d) return x[head_dim - 1 - d] end),
}
