-- expect: hook_not_a_function.lua:2: score_mod is a number; it must be a function(score, b, h, q_idx, kv_idx)
return attention { score_mod = 2 }
