-- A bias for each head and distance, read from a table of twice the sequence length.
--   s + bias[h, q - kv + q_len]
-- Shaw et al. 2018 without clipping. relative_position(table, n) in the standard library clips at n.
return attention {
  name = "relative_bias",
  inputs = { bias = { axes = {"h", "distances"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + bias[{h, q_idx - kv_idx + q_len}]
  end,
}
