-- expect: hook_with_memory.lua:6: score_mod: the hook took another way when it was called again; a hook must not change anything outside itself
local n = 0
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    n = n + 1
    if kv_idx < n then return score end
    return -score
  end,
}
