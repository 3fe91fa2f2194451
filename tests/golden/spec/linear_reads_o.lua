-- expect: linear_reads_o.lua:4: undefined name 'o': it is no argument of decay, which is called with (b, h, t, d)
return linear_attention {
  name  = "own_output",
  decay = function(b, h, t) return -o * 0.1 end,
}
