-- expect: mask_not_called.lua:2: block_mask is a function of the standard library that makes one; call it, as in block_mask = causal()
return attention { block_mask = causal }
