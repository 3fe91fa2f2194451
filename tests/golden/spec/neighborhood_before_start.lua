-- expect: neighborhood_before_start.lua:3: neighborhood of size {8, 8}: is asked for the position q_idx - 1, which is below 0 where q_idx is below 1; ask it under `if q_idx >= 1`, or move the grid by the padding it has
local grid = neighborhood { size = {8, 8}, kernel = {3, 3} }
return attention { block_mask = function(b, h, q_idx, kv_idx) return grid(b, h, q_idx - 1, kv_idx - 1) end }
