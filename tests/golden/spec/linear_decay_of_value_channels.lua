-- expect: linear_decay_of_value_channels.lua:6: input 'g': index 4 is a channel of q and k, and its axis "dv" has those of v, on which decay cannot depend; declare the axis "d", or scale v itself by value_mod or update.write
return linear_attention {
  name   = "decay_of_v",
  inputs = { g = { axes = {"b", "t", "hv", "dv"} } },
  decay  = function(b, h, t, d)
    return g[{b, t, h, d}]
  end,
}
