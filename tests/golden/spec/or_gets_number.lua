-- expect: or_gets_number.lua:2: mask_or: mask 1 returned a number; return a boolean such as kv_idx <= q_idx
local function mine(b, h, q_idx, kv_idx)
  if kv_idx <= q_idx then return true end
  return 0
end
return attention { block_mask = mask_or(mine, causal()) }
