-- expect: undefined_parameter.lua:3: undefined name 'slope'; declare it as an input or a scalar, or as a local
return attention {
  score_mod = function(s, b, h, q_idx, kv_idx) return s * slope end,
}
