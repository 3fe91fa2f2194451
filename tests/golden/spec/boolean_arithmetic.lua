-- expect: boolean_arithmetic.lua:4: +: a boolean stands where a number is needed; write where(condition, 1, 0)
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + (kv_idx < q_idx)
  end,
}
