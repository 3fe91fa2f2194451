-- expect: index_out_of_range.lua:4: input 'bias': index 1 is 8, outside its axis (0 .. 7); indices count from 0
return attention {
  inputs = { bias = { axes = {8} } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + bias[8] end,
}
