-- expect: string_index.lua:4: input 'slopes': indexed by the name 'h'; write slopes[i], with a variable or a number
return attention {
  inputs = { slopes = { axes = {"h"} } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score * slopes.h end,
}
