-- expect: and_gets_function.lua:2: mask_and: mask 1 returned a function; return a boolean; a function that makes one is called, as in causal()
local function mine(b, h, q_idx, kv_idx)
  return causal
end
return attention { block_mask = mask_and(mine, causal()) }
