-- expect: condition_in_file.lua:2: a function stands where a condition is needed, and in Lua each function is true; join masks by mask_and(..), mask_or(..) and mask_not(..), and call one in a hook, as in mask(b, h, q_idx, kv_idx)
return attention { block_mask = causal() and sliding_window(3, 0) }
