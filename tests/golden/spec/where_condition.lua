-- expect: where_condition.lua:4: where: the condition is a traced number; write a comparison such as where(x > 0, a, b)
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return where(score, 1, 0)
  end,
}
