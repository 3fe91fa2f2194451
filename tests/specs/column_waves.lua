-- Sines of a per-column input, which a producer warp computes in the sm90 family.
return attention {
  inputs = { w = { axes = {"kv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local x = w[kv_idx]
    return score + cos(x) + sin(3 * x) * cos(7 * x + 1)
  end,
}
