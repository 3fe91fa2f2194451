-- A learned bias for each query, with softmax. The bias changes only lse, so its gradient comes only through
-- lse, and is small compared with the dS that are summed.
return attention {
  name = "bias_of_query",
  inputs = { t = { axes = {"h", "q"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + t[{h, q_idx}] end,
  block_mask = sliding_window(150, 40),
}
