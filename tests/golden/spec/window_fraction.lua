-- expect: window_fraction.lua:2: sliding_window: left is 2.5; give an integer, at least 0, or nil or -1 for no bound
return attention { block_mask = sliding_window(2.5, 0) }
