-- expect: condition_in_file_uncalled.lua:2: a function stands where a condition is needed, and in Lua each function is true; it is called, as in causal()
local m = causal and sliding_window(3, 0) return attention { block_mask = m }
