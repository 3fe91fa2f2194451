-- expect: grid_bare_index.lua:5: index of input 't': q_idx is a place on the grid (y, x), and no number; write q_idx.y and q_idx.x
return attention {
  grid = {"y", "x"},
  inputs = { t = { axes = {"q.y"} } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + t[q_idx] end,
}
