-- expect: not_of_condition.lua:5: ~ on a condition; write `not (..)`
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  block_mask = function(b, h, q_idx, kv_idx)
    return ~(kv_idx <= q_idx)
  end,
}
