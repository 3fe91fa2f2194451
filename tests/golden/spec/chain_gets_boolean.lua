-- expect: chain_gets_boolean.lua:2: chain: function 2 returned a boolean; return a number such as where(condition, a, b)
return attention { score_mod = chain(softcap(3), function(score, b, h, q_idx, kv_idx) return kv_idx <= q_idx end) }
