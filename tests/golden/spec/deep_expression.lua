-- expect: deep_expression.lua:4: score_mod: an expression is nested deeper than 4096 operations; shorten the loop that builds it
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    for i = 1, 5000 do score = score * 0.5 + i end
    return score
  end,
}
