-- expect: input_assigned_after.lua:6: 'slopes' is assigned, but attention { .. } declares it; choose another name for one of them
spec = attention {
  inputs = { slopes = { axes = {"h"} } },
  score_mod = function(score, b, h) return score * slopes[h] end,
}
function slopes(h) return h end
return spec
