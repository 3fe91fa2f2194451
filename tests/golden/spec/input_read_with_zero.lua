-- expect: input_read_with_zero.lua:5: undefined name 'w?'; did you mean 'w'?
return attention {
  inputs = { w = { axes = { "h" } } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score * _ENV["w\0"][h]
  end,
}
