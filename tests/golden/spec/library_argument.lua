-- expect: library_argument.lua:2: dilated_window: w is 1.5; give an integer, at least 0
return attention { block_mask = dilated_window(1.5, 2) }
