-- expect: axes_without_field.lua:3: input 'slopes': its axes stand in a field of that name; write slopes = { axes = {"h"} }
return attention {
  inputs = { slopes = {"h"} },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + slopes[h] end,
}
