-- expect: number_indexed.lua:5: a traced number is indexed; only inputs and tables have elements
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score[1]
  end,
}
