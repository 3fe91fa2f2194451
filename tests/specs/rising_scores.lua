-- Adds the distance to the score: float32 rounds a score of 1000 a thousand times as coarsely as a score of 1.
return attention {
  name = "rising_scores",
  block_mask = causal(),
  score_mod = function(score, b, h, q_idx, kv_idx) return score + (q_idx - kv_idx) end,
}
