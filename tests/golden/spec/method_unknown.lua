-- expect: method_unknown.lua:5: a traced number has no 'clone'; functions stand in front, as in tanh(x)
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score:clone()
  end,
}
