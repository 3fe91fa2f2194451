-- A number for each query that learns, under a softmax: it moves lse alone, so that its gradient is the one that
-- comes by lse, and small beside the dS that it is the sum of.
return attention {
  name = "bias_of_query",
  inputs = { t = { axes = {"h", "q"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + t[{h, q_idx}] end,
  block_mask = sliding_window(150, 40),
}
