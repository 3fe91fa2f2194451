-- expect: window_string.lua:2: sliding_window: left is '64'; give a number, a name of a scalar or input, or a function(b, h)
return attention { block_mask = sliding_window("64", 0) }
