-- expect: both_masks.lua:3: attention: both block_mask and mask_mod are given; they are two names of one field, so keep one
local function f(b, h, q_idx, kv_idx) return true end
return attention { block_mask = f, mask_mod = f }
