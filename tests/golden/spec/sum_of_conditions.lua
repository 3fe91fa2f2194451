-- expect: sum_of_conditions.lua:5: + on a condition: a boolean stands where a number is needed; write where(condition, 1, 0), or join conditions with `and`, `or`
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  block_mask = function(b, h, q_idx, kv_idx)
    return (kv_idx <= q_idx) + (kv_idx < 4) > 0
  end,
}
