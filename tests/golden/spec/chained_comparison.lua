-- expect: chained_comparison.lua:5: < on a condition: comparisons do not chain; write 0 <= x and x < 5 for 0 <= x < 5
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  block_mask = function(b, h, q_idx, kv_idx)
    return 0 <= q_idx - kv_idx < 5
  end,
}
