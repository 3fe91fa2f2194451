-- A learned number for each query, under a softmax: it changes only lse, so its gradient is the one through
-- lse, small compared with the dS that it sums.
return attention {
  name = "bias_of_query",
  inputs = { t = { axes = {"h", "q"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + t[{h, q_idx}] end,
  block_mask = sliding_window(150, 40),
}
