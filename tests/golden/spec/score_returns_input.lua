-- expect: score_returns_input.lua:4: score_mod: input 'bias' is used without an index; its axes are (h), so write bias[h]
return attention {
  inputs = { bias = { axes = {"h"} } },
  score_mod = function(score, b, h, q_idx, kv_idx) return bias end,
}
