-- A mask that reads bool inputs by batch and head, and a scalar. The scalar lies between integers,
-- where its gradient, zero, can be checked.
return attention {
  scalars = { reach = 9.4 },
  inputs = {
    keep = { axes = {"b", "h", "q", "kv"}, dtype = "bool" },
    pad = { axes = {"b", "kv"}, dtype = "bool" },
  },
  block_mask = function(b, h, q_idx, kv_idx)
    return keep[{b, h, q_idx, kv_idx}] and (pad[{b, kv_idx}] or h < 1) and q_idx - kv_idx <= reach * (b + 1)
  end,
}
