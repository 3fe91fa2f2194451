-- Sigmoid attention whose P are all far below 1 in some heads, and mostly so in the others.
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx) return score - where(h % 2 < 1, 9, 5.5) end,
  block_mask = causal(),
  online_func = sigmoid_attention,
}
