-- expect: not_of_two.lua:2: mask_not: got 2 arguments, and takes one; write mask_not(causal())
return attention { block_mask = mask_not(causal(), causal()) }
