-- A pair mask stored as numbers, which removes scores instead of adding to them.
--   s where t[q, kv] <= 1/2, else -inf
return attention {
  name = "lines_that_mask",
  inputs = { t = { axes = {"q", "kv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx) return where(t[{q_idx, kv_idx}] > 0.5, -math.huge, score) end,
}
