-- expect: predefined_function.lua:2: 'causal' is predefined; choose another name, or write local function causal(..)
function causal(b, h, q_idx, kv_idx) return kv_idx <= q_idx end
return attention { block_mask = causal }
