-- Dilated sliding window: every D-th key at a distance of at most W.
--   keep  |q - kv| <= W and (q - kv) mod D = 0
-- Longformer (Beltagy et al. 2020), section 3.1.
local W, D = 128, 4
return attention {
  name = "dilated_window",
  block_mask = function(b, h, q_idx, kv_idx)
    local distance = q_idx - kv_idx
    return abs(distance) <= W and eq(distance % D, 0)
  end,
}
