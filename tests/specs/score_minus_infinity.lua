-- Ports of old masks return -inf as the score instead of masking the element.
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return where(kv_idx <= q_idx, score, -math.huge)
  end,
}
