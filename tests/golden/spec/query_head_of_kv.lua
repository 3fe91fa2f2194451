-- expect: query_head_of_kv.lua:5: input 'gate': index 1 is the query head, but its axes are (hkv); write gate[h // (heads // heads_kv)]
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score * gate[h]
  end,
}
