-- An input that is read at three indices, one of them twice.
return attention {
  inputs = { t = { axes = {"n"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local far = abs(q_idx - kv_idx)
    return score + t[q_idx] * t[kv_idx] + t[far] * t[far]
  end,
}
