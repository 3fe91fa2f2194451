-- expect: linear_length.lua:4: undefined name 'kv_len': a step of linear_attention sees its own token, and no length; give it as a scalar
return linear_attention {
  name  = "length",
  decay = function(b, h, t) return -t / kv_len end,
}
