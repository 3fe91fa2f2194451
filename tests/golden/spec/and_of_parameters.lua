-- expect: and_of_parameters.lua:2: mask_and: argument 1: parameter 1 of the function is 'q_idx', but the hook is called with (b, h, q_idx, kv_idx); only parameters at the end may be left out
return attention { block_mask = mask_and(function(q_idx, kv_idx) return kv_idx <= q_idx end, causal()) }
