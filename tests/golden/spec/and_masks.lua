-- expect-parts: and_masks.lua:2: undefined name 'and_masks' | write mask_and(a, b)
return attention { block_mask = and_masks(causal(), sliding_window(8, 0)) }
