-- Modifiers of q, k and v, each with parameters that take a gradient.
return attention {
  name = "mods",
  scalars = { a = 0.7, c = 2.0 },
  inputs = {
    wq = { axes = {"h", 6}, grad = true },
    wk = { axes = {"hkv"}, grad = true },
    wv = { axes = {"kv"}, grad = true },
  },
  query_mod = function(x, b, h, i, d) return x * wq[{h, d}] + a * sin(i * 0.1) end,
  key_mod = function(x, b, h, i, d) return tanh(x * c) * wk[h] end,
  value_mod = function(x, b, h, i, d) return where(d < 3, x * x, x) * exp(-wv[i]) end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx + kv_len - q_len end,
}
