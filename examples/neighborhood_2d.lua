-- Neighbourhood attention on an H x W grid of tokens in row-major order: each token sees the K x K window
-- around it, shifted inwards at the border.
--   keep  first(x_q) <= x_kv < first(x_q) + K  on both axes,   first(x) = clamp(x - K / 2, 0, L - K)
-- Hassani et al. 2023 (NATTEN). The standard library's neighborhood { .. } adds strides, dilation, causality
-- and other dimensions.
local H, W, K = 16, 24, 7

local function near(i, j, length)
  local first = clamp(i - K // 2, 0, length - K)
  return first <= j and j < first + K
end

return attention {
  name = "neighborhood_2d",
  block_mask = function(b, h, q_idx, kv_idx)
    return near(q_idx // W, kv_idx // W, H) and near(q_idx % W, kv_idx % W, W)
  end,
}
