-- expect: shift.lua:5: >> is not possible on a traced number; write x // 2 for x >> 1, x // 4 for x >> 2 and so on
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + (q_idx >> 1)
  end,
}
