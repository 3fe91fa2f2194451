-- expect-parts: indices_without_braces.lua:5: | ; several indices stand in braces: t[{i, j}]
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  block_mask = function(b, h, q_idx, kv_idx)
    return keep[b, kv_idx]
  end,
}
