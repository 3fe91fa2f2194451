-- Scores as large as the distance: of thousands float32 keeps four digits behind the point less than of ones.
return attention {
  name = "rising_scores",
  block_mask = causal(),
  score_mod = function(score, b, h, q_idx, kv_idx) return score + (q_idx - kv_idx) end,
}
