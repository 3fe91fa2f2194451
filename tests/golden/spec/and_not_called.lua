-- expect: and_not_called.lua:2: mask_and: argument 1 is a function of the standard library that makes one; call it, as in causal()
return attention { block_mask = mask_and(causal, sliding_window(64, 64)) }
