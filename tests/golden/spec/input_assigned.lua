-- expect: input_assigned.lua:5: an element of input 'seen' is assigned; a hook reads inputs and returns its result
return attention {
  inputs = { seen = { axes = {"h"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    seen[h] = score
    return score
  end,
}
