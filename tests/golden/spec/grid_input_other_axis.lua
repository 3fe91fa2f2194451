-- expect: grid_input_other_axis.lua:5: input 't': index 1 is a position along another axis, but its axes are (q.y); write t[q_idx.y]
return attention {
  grid = {"y", "x"},
  inputs = { t = { axes = {"q.y"} } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + t[q_idx.x] end,
}
