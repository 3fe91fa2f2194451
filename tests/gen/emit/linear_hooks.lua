-- Of linear_hosted.cpp: each hook that the kernels of linear attention take.
return linear_attention {
  name      = "linear_hooks",
  scalars   = { c = 0.75 },
  inputs    = { a = { axes = {"b", "t", "hv"} }, w = { axes = {"t", "hv", "b"} }, of_q = { axes = {"h"} },
                of_k = { axes = {"b", "h"} }, gate = { axes = {"hv", "dv"} }, D = { axes = {"hv"} } },
  query_mod = function(x, b, h) return -(x * of_q[h]) / 2 end,
  key_mod   = function(x, b, h) return of_k[{b, h}] * (3 * x) end,
  value_mod = function(x, b, h, t, d) return where(d < 2, x * gate[{h, d}], tanh(x) + t) end,
  decay     = function(b, h, t) return -softplus(a[{b, t, h}]) * c - h / heads_v end,
  update    = delta_rule(function(b, h, t) return sigmoid(w[{t, h, b}]) end),
  skip      = function(x, b, h, t, d) return D[h] * x + d * (head_dim_v - head_dim) end,
}
