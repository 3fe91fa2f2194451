-- expect: method_of_number.lua:5: a traced number has no 'tanh'; functions stand in front: tanh(x)
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return 20 * (score / 20):tanh()
  end,
}
