-- expect: nan_constant.lua:4: +: the number is NaN; a spec computes with numbers that compare
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + 0 / 0
  end,
}
