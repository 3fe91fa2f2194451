-- expect: too_many_branches.lua:3: score_mod: its comparisons branch into more than 4096 ways; use min, max, abs or relu in place of independent branches, or bound its loops
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    for i = 1, 13 do score = score + where(kv_idx * i < q_idx, i, 0) end
    return score
  end,
}
