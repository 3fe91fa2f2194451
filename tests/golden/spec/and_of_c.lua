-- expect-parts: and_of_c.lua:5: | ; write `and` for &&
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx <= q_idx && keep[{b, kv_idx}]
  end,
}
