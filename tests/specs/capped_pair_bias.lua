-- A pair bias whose gradient is not dS, because the score is capped. `grad` adds it element by element.
return attention {
  name = "capped_pair_bias",
  inputs = { bias = { axes = {"h", "q", "kv"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return 20 * tanh(score / 20) + bias[{h, q_idx, kv_idx}] end,
  block_mask = causal(),
}
