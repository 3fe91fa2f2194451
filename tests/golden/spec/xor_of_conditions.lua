-- expect: xor_of_conditions.lua:5: ~ between conditions; write (a and not c) or (c and not a)
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  block_mask = function(b, h, q_idx, kv_idx)
    return (kv_idx <= q_idx) ~ (kv_idx < 4)
  end,
}
