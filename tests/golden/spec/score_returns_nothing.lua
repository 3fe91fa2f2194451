-- expect: score_returns_nothing.lua:3: score_mod: returned nil; return a number
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    score = score * 2
  end,
}
