-- A window, and tokens that see all and are seen by all, wherever they are: the mask's only hoisted value of
-- a row is a bool, one byte.
local W = 40
return attention {
  inputs = { is_global = { axes = {"n"}, dtype = "bool" } },
  block_mask = function(b, h, q_idx, kv_idx)
    return abs(q_idx - kv_idx) <= W or is_global[q_idx] or is_global[kv_idx]
  end,
}
