-- expect: axes_swapped.lua:5: input 'keep': index 1 is a position, but its axes are (b, kv); write keep[{b, kv_idx}]
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  block_mask = function(b, h, q_idx, kv_idx)
    return keep[{kv_idx, b}]
  end,
}
