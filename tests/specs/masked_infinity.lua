-- Scores that are infinite or NaN where the mask excludes them.
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score / (q_idx - kv_idx) + log(q_idx - kv_idx)
  end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx < q_idx end,
}
