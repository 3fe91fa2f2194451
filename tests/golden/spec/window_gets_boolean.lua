-- expect: window_gets_boolean.lua:2: sliding_window: left returned a boolean; return a number such as where(condition, a, b)
return attention { block_mask = sliding_window(function(b, h) return true end, 0) }
