-- expect: window_named_function.lua:2: sliding_window: left: 'causal' is a function; name a scalar or an input
return attention { block_mask = sliding_window("causal", 0) }
