-- A bias for each head, query and key, as AlphaFold's pair bias.
--   s + bias[h, q, kv]
return attention {
  name = "bias_of_pair",
  inputs = { bias = { axes = {"h", "q", "kv"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + bias[{h, q_idx, kv_idx}] end,
}
