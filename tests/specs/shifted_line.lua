-- A pair bias that each key reads three keys further on; the index is clamped to the last key.
--   s + t[h, q, min(kv + 3, kv_len - 1)]
return attention {
  name = "shifted_line",
  inputs = { t = { axes = {"h", "q", "kv"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + t[{h, q_idx, kv_idx + 3}] end,
  block_mask = causal(),
}
