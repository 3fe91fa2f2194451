-- expect: window_negative.lua:2: sliding_window: left is -3; give an integer, at least 0, or nil or -1 for no bound
return attention { block_mask = sliding_window(-3, 0) }
