-- expect: concatenation.lua:4: .. is not possible on a traced number
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score .. ""
  end,
}
