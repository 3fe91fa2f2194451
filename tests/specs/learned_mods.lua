-- Learned mods of q, k and v.
return attention {
  scalars = { g = 1.5 },
  inputs = {
    wq = { axes = {"h", "channel"}, grad = true },
    wk = { axes = {"hkv", "channel"}, grad = true },
    wv = { axes = {"kv"}, grad = true },
  },
  query_mod = function(x, b, h, pos, d) return x * wq[{h, d}] * g end,
  key_mod = function(x, b, h, pos, d) return x + wk[{h, d}] end,
  value_mod = function(x, b, h, pos, d) return x * wv[pos] end,
}
