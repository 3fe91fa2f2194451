-- expect: number_too_large.lua:2: 1e400 is larger than float64 holds, and Lua would read it as infinity; write math.huge
return attention { score_mod = function(score) return min(score, 1e400) end }
