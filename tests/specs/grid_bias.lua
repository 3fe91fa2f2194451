-- Relative biases over a grid: terms that depend on kv - q along each axis alone, learned ones among them, whatever their form.
return attention {
  name = "grid_bias",
  grid = {"y", "x"},
  scalars = { slope = 0.1 },
  inputs = {
    rpb = { axes = {"h", 13, 3, 21}, dtype = "bf16", grad = true },
    far = { axes = {9}, grad = true },
  },
  score_mod = function(s, b, h, q, k)
    local y, x = k.y - q.y, k.x - q.x
    return s + rpb[{h, y + 6, 1, x // 2 + 10}] + far[min(abs(y) + abs(x), 8)] * exp(-slope * (y * y + x * x))
  end,
  block_mask = function(b, h, q, k) return abs(k.y - q.y) <= 3 and abs(k.x - q.x) <= 9 end,
}
