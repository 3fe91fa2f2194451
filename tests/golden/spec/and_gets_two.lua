-- expect: and_gets_two.lua:2: mask_and: mask 1 returned 2 values; return one
local function mine(b, h, q_idx, kv_idx)
  return true, false
end
return attention { block_mask = mask_and(mine) }
