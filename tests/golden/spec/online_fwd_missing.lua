-- expect: online_fwd_missing.lua:2: online_func: online_fwd is missing; it must be a function(scores, rowscales, b, h, q_idx)
return attention { online_func = { name = "x" } }
