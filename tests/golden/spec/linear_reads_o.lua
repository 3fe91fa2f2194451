-- expect: linear_reads_o.lua:4: undefined name 'o': a hook of linear_attention is computed before its token's step, from its arguments, inputs and scalars
return linear_attention {
  name  = "own_output",
  decay = function(b, h, t) return -o * 0.1 end,
}
