-- Gradients that are sums of dS over equal distances, rows or columns.
return attention {
  inputs = {
    d = { axes = {"h", "n"}, grad = true },
    r = { axes = {"q"}, grad = true },
    c = { axes = {"b", "kv"}, grad = true },
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + d[{h, (kv_idx - q_idx) // 16 + 2}] + r[q_idx] + c[{b, kv_idx}]
  end,
  block_mask = sliding_window(200, 70),
}
