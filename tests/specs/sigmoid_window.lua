-- Sigmoid attention with a learned offset for each row, in a window.
return attention {
  inputs = { beta = { axes = {"b", "h", "q"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + beta[{b, h, q_idx}] end,
  block_mask = sliding_window_bottom_right(5, 3),
  online_func = sigmoid_attention,
}
