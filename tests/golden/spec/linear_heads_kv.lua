-- expect: linear_heads_kv.lua:4: undefined name 'heads_kv'; did you mean 'heads_v'?
return linear_attention {
  name  = "heads",
  decay = function(b, h) return -h / heads_kv end,
}
