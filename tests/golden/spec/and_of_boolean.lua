-- expect: and_of_boolean.lua:2: mask_and: argument 2 is true; give a function
return attention { block_mask = mask_and(causal(), true) }
