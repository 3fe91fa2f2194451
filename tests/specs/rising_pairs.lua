-- Pair biases far beyond the range of exp, so that the running maximum rises in every kv tile of a q tile;
-- and q tiles that keep nothing after q tiles that keep scores.
return attention {
  name = "rising_pairs",
  inputs = { t = { axes = {"h", "q", "kv"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + 100 * t[{h, q_idx, kv_idx}] end,
  block_mask = function(b, h, q_idx, kv_idx) return q_idx >= 260 and kv_idx <= q_idx end,
}
