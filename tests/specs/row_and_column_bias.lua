-- A score mod that reads one number for each row, one for each column, and has a gradient for both.
return attention {
  inputs = {
    row = { axes = {"b", "h", "q"}, grad = true },
    column = { axes = {"b", "hkv", "kv"}, grad = true },
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score * row[{b, h, q_idx}] + column[{b, h // (heads // heads_kv), kv_idx}]
  end,
}
