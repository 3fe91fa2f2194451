-- expect: local_typo.lua:5: *: nil stands where a number is needed
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    local slope
    return score + slope * kv_idx
  end,
}
