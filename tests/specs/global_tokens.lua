-- A window, and tokens at any position that see and are seen by all others. The mask's only hoisted value of
-- a row is a bool of one byte.
local W = 40
return attention {
  inputs = { is_global = { axes = {"n"}, dtype = "bool" } },
  block_mask = function(b, h, q_idx, kv_idx)
    return abs(q_idx - kv_idx) <= W or is_global[q_idx] or is_global[kv_idx]
  end,
}
