-- A learned bias for each element.
return attention {
  inputs = { bias = { axes = {"b", "h", "q", "kv"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + bias[{b, h, q_idx, kv_idx}]
  end,
}
