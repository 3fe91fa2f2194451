-- GLA whose tokens choose how much they write.
return linear_attention {
  inputs = { g = { axes = {"b", "t", "hv", "d"}, grad = true }, w = { axes = {"b", "t", "hv"}, grad = true } },
  decay  = function(b, h, t, d) return log_sigmoid(g[{b, t, h, d}]) / 16 end,
  update = { write = function(b, h, t) return sigmoid(w[{b, t, h}]) end },
}
