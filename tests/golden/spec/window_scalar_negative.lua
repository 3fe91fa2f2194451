-- expect: window_scalar_negative.lua:2: sliding_window: left is the scalar 'w', whose default is -1; give an integer, at least 0, or inf for no bound
return attention { scalars = { w = -1 }, block_mask = sliding_window("w", 0) }
