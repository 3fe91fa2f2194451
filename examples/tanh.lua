-- Tanh-squashed scores: bounded logits, with a learned bound.
--   s' = c * tanh(s)
-- Bello et al. 2016, "Neural combinatorial optimization", c = 10. Unlike a soft cap, the slope at zero is c.
return attention {
  name = "tanh",
  scalars = { c = 10.0 },
  score_mod = function(score, b, h, q_idx, kv_idx) return c * tanh(score) end,
}
