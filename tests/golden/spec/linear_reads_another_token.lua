-- expect: linear_reads_another_token.lua:6: input 'g': index 2 is not t, and a hook of linear_attention reads the numbers of its own token alone; write g[{b, t, h}], or give what another token has as an input of its own
return linear_attention {
  name   = "shifted",
  inputs = { g = { axes = {"b", "t", "hv"} } },
  decay  = function(b, h, t)
    return g[{b, t - 1, h}]
  end,
}
