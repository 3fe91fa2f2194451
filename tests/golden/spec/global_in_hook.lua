-- expect: global_in_hook.lua:4: global 'count' is assigned inside a hook; a hook must not change anything outside itself, so write local count
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    count = 1
    return score
  end,
}
