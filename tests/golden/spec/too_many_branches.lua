-- expect: too_many_branches.lua:3: score_mod: its comparisons branch into more than 4096 ways; let one comparison stand for several, as min(x, y) >= 0 for x >= 0 and y >= 0, and max(x, y) >= 0 for `or`, use abs, relu or clamp, or bound its loops
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    for i = 1, 13 do if kv_idx * i < q_idx then score = score + i end end
    return score
  end,
}
