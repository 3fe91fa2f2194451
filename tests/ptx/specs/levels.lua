-- A learned number for each query and level of its distance, as log-linear attention has: sm90's backward takes tiles of 64 x 64.
return attention {
  name = "levels",
  block_mask = causal(),
  inputs = { of_level = { axes = {"b", "h", "q", 12}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local level = 0
    for i = 0, 10 do level = where(q_idx ~ kv_idx >= (1 << i), i + 1, level) end
    return score + of_level[{b, h, q_idx, level}]
  end,
}
