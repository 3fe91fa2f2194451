-- expect: hook_that_counts.lua:4: block_mask: gives another result when it is called again; a hook must not keep anything between calls, nor go by the order of pairs, so use its arguments, inputs, scalars and locals
local n = 0
return attention {
  block_mask = function(b, h, q_idx, kv_idx)
    n = n + 1
    return kv_idx <= q_idx + n
  end,
}
