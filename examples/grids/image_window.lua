-- Neighbourhood attention over an image, with a learned bias for each displacement and head: each place sees the 7 x 7
-- places around it, shifted inwards at the border.
--   s' = s + bias[h, y_kv - y_q + 6, x_kv - x_q + 6]
-- Hassani et al. 2023 (NATTEN). q is [batch, heads, y, x, head_dim], with extents that come with each call.
local K = 7

return attention {
  name = "image_window",
  grid = {"y", "x"},
  inputs = { bias = { axes = {"h", 2 * K - 1, 2 * K - 1}, dtype = "any", grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + bias[{h, kv_idx.y - q_idx.y + K - 1, kv_idx.x - q_idx.x + K - 1}]
  end,
  block_mask = neighborhood { kernel_size = {K, K} },
}
