-- expect-parts: add_to.lua:5: | ; write x = x + y for x += y
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    score += slopes[h]
  end,
}
