-- expect: guard_called.lua:2: '__table' is a name of luattn's own; choose another
return attention { score_mod = function(score, b, h, q_idx, kv_idx) return score + __table(5) end }
