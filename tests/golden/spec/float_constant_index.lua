-- expect: float_constant_index.lua:4: input 'bias': index 1 is the float 1.500000; gathers take integers, so use // or floor()
return attention {
  inputs = { bias = { axes = {8} } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + bias[1.5] end,
}
