-- expect: not_gets_nothing.lua:2: mask_not: mask 1 returned nil; return a boolean such as kv_idx <= q_idx
local function mine(b, h, q_idx, kv_idx)
  if kv_idx <= q_idx then return true end
end
return attention { block_mask = mask_not(mine) }
