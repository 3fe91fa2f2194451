-- expect: number_called.lua:5: a traced number is called like a function; multiplication is written a * b
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score(2)
  end,
}
