-- A bias for each head and query.
--   s + bias[h, q]
return attention {
  name = "bias_of_query",
  inputs = { bias = { axes = {"h", "q"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + bias[{h, q_idx}] end,
}
