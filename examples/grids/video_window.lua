-- Attention over a video, causal in time: each place sees the frames up to its own that lie within 4 of it, and in each
-- of them the 5 x 7 places around it, of which 2 in a row share a window along x.
--   keep  t_q - 3 <= t_kv <= t_q, and the nearest places along y and x
-- q is [batch, heads, t, y, x, head_dim].
return attention {
  name = "video_window",
  grid = {"t", "y", "x"},
  block_mask = neighborhood { kernel_size = {4, 5, 7}, stride = {1, 1, 2}, is_causal = {true, false, false} },
}
