-- grid_softcap.lua: a window over a grid whose scores are far below their cap.
return attention {
  name = "grid_softcap",
  grid = { "y", "x" },
  score_mod = softcap(30),
  block_mask = function(b, h, q, k) return abs(k.y - q.y) <= 6 and abs(k.x - q.x) <= 6 end,
}
