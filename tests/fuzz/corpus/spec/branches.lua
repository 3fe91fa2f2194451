return attention { name = 's', scalars = { c = 1.0 }, score_mod = function(score, b, h, q_idx, kv_idx) if q_idx > kv_idx and h < 2 then return c * tanh(score) end return score end }
