-- expect: undefined_function.lua:4: undefined name 'tahn'; did you mean 'tanh'?
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return tahn(score)
  end,
}
