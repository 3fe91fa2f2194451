-- Sliding tile attention over a video: 2 x 3 x 4 places see the tiles around theirs, with a soft cap.
return attention {
  name = "sliding_tile",
  grid = {"t", "y", "x"},
  score_mod = softcap(5),
  block_mask = sliding_tile { tile = {2, 3, 4}, window = {2, 9, 12} },
}
