-- expect: name_in_capitals.lua:5: undefined name 'KV_LEN'; did you mean 'kv_len'?
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score / KV_LEN
  end,
}
