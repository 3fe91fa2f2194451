-- expect: float_index.lua:5: input 'bias': index 1 is a float expression; gathers take integers, so use // or floor()
return attention {
  inputs = { bias = { axes = {"q"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + bias[q_idx / 2]
  end,
}
