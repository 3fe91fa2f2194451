-- A bias for each head and key.
--   s + bias[h, kv]
return attention {
  name = "bias_of_key",
  inputs = { bias = { axes = {"h", "kv"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + bias[{h, kv_idx}] end,
}
