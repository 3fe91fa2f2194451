-- expect: window_function_fraction.lua:2: sliding_window_bottom_right: right, which the function returned, is 2.5; give an integer, at least 0, or nil or -1 for no bound
return attention { block_mask = sliding_window_bottom_right(4, function(b, h) return 2.5 end) }
