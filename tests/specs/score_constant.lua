-- A constant score, which gives the mean of v.
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return 3
  end,
}
