-- expect-parts: power_of_python.lua:5: | ; a power is written x ^ y
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score ** 2
  end,
}
