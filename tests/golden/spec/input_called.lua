-- expect: input_called.lua:5: input 'keep' is called like a function; write keep[{b, kv_idx}]
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  block_mask = function(b, h, q_idx, kv_idx)
    return keep(b, kv_idx)
  end,
}
