-- Rows whose every score is -inf keep nothing.
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return where(kv_idx <= q_idx - 4, score, -math.huge)
  end,
}
