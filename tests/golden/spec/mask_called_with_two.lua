-- expect: mask_called_with_two.lua:3: a mask of causal is called with (b, h, q_idx, kv_idx), and got 2 arguments
local early = causal()
return attention { block_mask = function(b, h, q_idx, kv_idx) return early(q_idx, kv_idx) end }
