-- expect: causal_with_table.lua:2: causal: got 1 argument, and takes none; write causal()
return attention { block_mask = causal { bottom_right = true } }
