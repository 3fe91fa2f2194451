-- expect-parts: conditional_of_c.lua:5: | ; write where(condition, a, b)
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return kv_idx <= q_idx ? score : 0
  end,
}
