-- expect: index_by_name.lua:2: input 'bias': its index has the entry [kv]; list one index for each axis, as in {i, j}
return attention { inputs = { bias = { axes = {"h", "q"} } }, score_mod = function(score, b, h, q_idx) return score + bias[{h, q_idx, kv = 3}] end }
