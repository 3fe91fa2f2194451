-- expect-parts: function_of_python.lua:2: | near 'score_mod'; Lua writes function(score, b, h, q_idx, kv_idx) return .. end for def and lambda
def score_mod(score, b, h, q_idx, kv_idx):
    return score + (q_idx - kv_idx)
