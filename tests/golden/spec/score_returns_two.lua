-- expect: score_returns_two.lua:3: score_mod: returned 2 values; return one
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score, 1
  end,
}
