-- A pair bias for each batch, and one for its keys: bias rows that no batch shares, with columns next to
-- them.
--   s + t[b, h, q, kv] + u[b, kv]
return attention {
  name = "lines_of_batches",
  inputs = { t = { axes = {"b", "h", "q", "kv"}, grad = true }, u = { axes = {"b", "kv"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + t[{b, h, q_idx, kv_idx}] + u[{b, kv_idx}] end,
  block_mask = function(b, h, q_idx, kv_idx) return q_idx >= kv_idx end,
}
