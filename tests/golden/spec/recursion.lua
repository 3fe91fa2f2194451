-- expect-parts: recursion.lua:2: | stack overflow | ; a function calls itself without end
local function f(x) return 1 + f(x) end
return attention { score_mod = function(score, b, h, q_idx, kv_idx) return f(score) end }
