-- expect: number_input_indexed.lua:4: input 'bias' has no axes, so it is one number and takes no index; write bias
return attention {
  inputs = { bias = { axes = {} } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + bias[0] end,
}
