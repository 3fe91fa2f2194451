-- Branches, sums in branches, integers, flags, and inputs of every axis in hooks of one spec.
return linear_attention {
  name = "hooks_of_all_kinds",
  scalars = { c = 1.5, n = 3 },
  inputs = { flag = { axes = {"b", "t"}, dtype = "bool" }, temp = { axes = {}, grad = true }, tab = { axes = {"far"}, grad = true },
             per = { axes = {"hv", 3}, grad = true }, ids = { axes = {"b", "t"}, dtype = "i32" }, anyt = { axes = {"b", "hv"}, dtype = "any", grad = true } },
  query_mod = function(x, b, h, t, d) return where(t % 2 < 1, x * temp, x + tab[t]) end,
  key_mod = function(x, b, h, t, d) if flag[{b, t}] then return l2norm(x) end return x * reduce_sum(where(d < n, x, 0)) end,
  value_mod = function(x, b, h, t, d) return x + d / head_dim_v end,
  decay = function(b, h, t, d) return -abs(per[{h, ids[{b, t}] % 3}]) - 0.01 * d / head_dim end,
  update = { write = function(b, h, t) return where(flag[{b, t}], 1, c) end, read = function(k, b, h, t, d) return 0.3 * k * sigmoid(anyt[{b, h}]) end },
  skip = function(x, b, h, t, d) return x * exp(-t / 10) * relu(reduce_sum(x)) end,
}
