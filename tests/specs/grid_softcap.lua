-- grid_softcap.lua: a window over a grid whose scores are far below their cap.
return attention {
  name = "grid_softcap",
  grid = { "y", "x" },
  score_mod = softcap(30),
  block_mask = neighborhood { kernel_size = { 13, 13 } },
}
