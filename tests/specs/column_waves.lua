-- Sines of what a column reads: in sm90 a warp of the producer computes them.
return attention {
  inputs = { w = { axes = {"kv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local x = w[kv_idx]
    return score + cos(x) + sin(3 * x) * cos(7 * x + 1)
  end,
}
