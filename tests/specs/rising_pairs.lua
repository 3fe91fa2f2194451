-- Pair biases far beyond the range of weights, so that maxima rise from tile to tile, up to a q tile's last;
-- and q tiles that keep nothing after those that do.
return attention {
  name = "rising_pairs",
  inputs = { t = { axes = {"h", "q", "kv"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + 100 * t[{h, q_idx, kv_idx}] end,
  block_mask = function(b, h, q_idx, kv_idx) return q_idx >= 260 and kv_idx <= q_idx end,
}
