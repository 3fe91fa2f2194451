-- expect: and_of_nothing.lua:2: mask_and: has no arguments; give at least one function
return attention { block_mask = mask_and() }
