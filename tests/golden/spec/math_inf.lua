-- expect: math_inf.lua:5: math has no 'inf'; write math.huge
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return where(q_idx >= kv_idx, score, -math.inf)
  end,
}
