-- expect: parameter_left_out.lua:3: undefined name 'h': score_mod is called with (score, b, h, q_idx, kv_idx), but the function here has (score); use these names, or hand h to it
return attention {
  score_mod = function(score) return score * h end,
}
