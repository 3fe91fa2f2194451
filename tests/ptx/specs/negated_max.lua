-- Maxima of a negated number and others, of integers: ptxas leaves out such a minus (gen/nvrtc/lost_sign.h).
return attention {
  name = "negated_max",
  inputs = { w = { axes = { "h" }, dtype = "i32" } },
  block_mask = function(b, h, q_idx, kv_idx)
    return max(max(q_idx - kv_idx, -w[h]), kv_idx - q_idx - 40) <= 30
  end,
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + 0.01 * min(min(kv_idx, -w[h]), 5 - q_idx) + 0.02 * max(max(q_idx, -w[h]), kv_idx)
  end,
}
