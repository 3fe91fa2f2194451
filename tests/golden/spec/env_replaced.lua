-- expect-parts: env_replaced.lua:3: | attempt to call a nil value (global 'attention') | ; _ENV was replaced by a table without that name
local _ENV = {}
return attention { score_mod = function(score, b, h, q_idx, kv_idx) return score end }
