-- expect: concatenation.lua:4: .. is not possible on a traced number, whose value is not known yet; to choose by it, read an input at it, as in t[h], or use where()
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score .. ""
  end,
}
