-- expect: and_gets_input.lua:5: mask_and: mask 1: input 'flags' is used without an index; its axes are (kv), so write flags[kv_idx]
local function mine(b, h, q_idx, kv_idx)
  return flags
end
return attention { inputs = { flags = { axes = {"kv"}, dtype = "bool" } }, block_mask = mask_and(mine) }
