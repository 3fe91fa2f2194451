-- expect: or_of_conditions.lua:5: | between conditions; write `or`
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  block_mask = function(b, h, q_idx, kv_idx)
    return (kv_idx <= q_idx) | (kv_idx < 4)
  end,
}
