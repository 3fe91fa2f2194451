-- expect: unbounded_branches.lua:3: score_mod: more than 256 undecided comparisons in one call (the last in line 5); bound the loop that makes them, or join them by min, max and clamp, which ask nothing
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    local i = 0
    while i < kv_idx do i = i + 1 end
    return score
  end,
}
