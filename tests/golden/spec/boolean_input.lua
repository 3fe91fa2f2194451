-- expect: boolean_input.lua:4: *: a boolean stands where a number is needed; write where(condition, 1, 0)
return attention {
  inputs = { keep = { axes = {"kv"}, dtype = "bool" } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score * keep[kv_idx] end,
}
