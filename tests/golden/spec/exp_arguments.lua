-- expect: exp_arguments.lua:4: exp: takes 1 argument, got 0
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return exp()
  end,
}
