-- expect: kv_head_of_query.lua:5: input 'slopes': index 1 is the kv head, but its axes are (h); write slopes[h * (heads // heads_kv)]
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  key_mod = function(x, b, h, pos, d)
    return x * slopes[h]
  end,
}
