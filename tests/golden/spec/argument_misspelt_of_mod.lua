-- expect: argument_misspelt_of_mod.lua:3: undefined name 'kv_indx'; declare it as an input or a scalar, or as a local
return attention {
  query_mod = function(x, b, h, pos, d) return x * kv_indx end,
}
