-- expect: argument_in_helper.lua:2: undefined name 'q_idx': score_mod is called with (score, b, h, q_idx, kv_idx), but the function here has (x, ...); use these names, or hand q_idx to it
local function helper(x, ...) return x + q_idx end
return attention { score_mod = function(score, b, h, q_idx, kv_idx) return helper(score) end }
