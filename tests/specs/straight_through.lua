-- Rounded scores with the gradient of unrounded ones.
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + stop_gradient(floor(score * 4) / 4 - score)
  end,
}
