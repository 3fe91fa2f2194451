-- expect-parts: lambda_of_python.lua:2: | near 's'; Lua writes function(score, b, h, q_idx, kv_idx) return .. end for def and lambda
return attention { score_mod = lambda s, b, h, q, kv: s }
