-- expect: undeclared_input.lua:5: undefined name 'packed_ids'; declare it as an input or a scalar, or as a local
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  block_mask = function(b, h, q_idx, kv_idx)
    return packed_ids[q_idx] <= kv_idx
  end,
}
