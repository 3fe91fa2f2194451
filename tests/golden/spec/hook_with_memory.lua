-- expect: hook_with_memory.lua:4: score_mod: gives another result when it is called again; a hook must not keep anything between calls, nor go by the order of pairs, so use its arguments, inputs, scalars and locals
local n = 0
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    n = n + 1
    if kv_idx < n then return score end
    return -score
  end,
}
