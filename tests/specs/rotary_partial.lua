-- Rotary embedding of the first 16 channels, in adjacent pairs, at positions from an input, with gradients of the
-- tables. v is mixed with other channels of its row, by permutations that are not their own inverses.
local rotate = rotary_interleaved("cosine", "sine", { channels = 16, positions = "ids" })
return attention {
  name = "rotary_partial",
  inputs = {
    cosine = { axes = {"position", 8}, grad = true },
    sine = { axes = {"position", 8}, grad = true },
    ids = { axes = {"b", "token"}, dtype = "i32" },
    gate = { axes = {"hkv", "channel"}, grad = true },
  },
  scalars = { amount = 0.5 },
  query_mod = rotate,
  key_mod = rotate,
  value_mod = function(x, b, h, pos, d)
    return x + amount * tanh(x[(d + 3) % head_dim]) * gate[{h, d}] * x[head_dim - 1 - d]
  end,
}
