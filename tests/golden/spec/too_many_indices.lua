-- expect: too_many_indices.lua:4: input 'bias' has 2 axes (h, 32), but 3 indices are given; write bias[{h, j}]
return attention {
  inputs = { bias = { axes = {"h", 32} } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + bias[{b, h, kv_idx}] end,
}
