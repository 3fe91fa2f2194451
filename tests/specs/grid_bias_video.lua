-- A relative bias of each head over three axes, as a video model learns it.
return attention {
  name = "grid_bias_video",
  grid = {"t", "y", "x"},
  inputs = { rpb = { axes = {"h", 5, 9, 9}, grad = true } },
  score_mod = function(s, b, h, q, k)
    return s + rpb[{h, k.t - q.t + 2, k.y - q.y + 4, k.x - q.x + 4}]
  end,
  block_mask = function(b, h, q, k) return abs(k.t - q.t) <= 2 and abs(k.y - q.y) <= 4 and abs(k.x - q.x) <= 4 end,
}
