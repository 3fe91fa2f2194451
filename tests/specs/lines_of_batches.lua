-- A pair bias and a key bias per batch entry: batch entries do not share bias rows, and Col is staged next to
-- them.
--   s + t[b, h, q, kv] + u[b, kv]
return attention {
  name = "lines_of_batches",
  inputs = { t = { axes = {"b", "h", "q", "kv"}, grad = true }, u = { axes = {"b", "kv"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + t[{b, h, q_idx, kv_idx}] + u[{b, kv_idx}] end,
  block_mask = function(b, h, q_idx, kv_idx) return q_idx >= kv_idx end,
}
