-- expect: score_returns_boolean.lua:3: score_mod: returned a boolean; return a number such as where(condition, a, b)
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return kv_idx <= q_idx
  end,
}
