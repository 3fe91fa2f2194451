-- expect: window_of_three.lua:2: sliding_window: got 3 arguments, and takes up to 2; write sliding_window(255, 0)
return attention { block_mask = sliding_window(1, 0, 3) }
