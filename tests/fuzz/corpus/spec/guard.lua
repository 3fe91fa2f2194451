local _ENV, attention = { f = function(...) return ... end }, attention
local keep = f{ f(...), [2] = {} }
return attention { score_mod = function(score, b, h, q_idx, kv_idx) return score + #keep end }
