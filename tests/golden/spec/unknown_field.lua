-- expect: unknown_field.lua:3: attention: unknown field 'scoremod'; did you mean 'score_mod'?
return attention {
  scoremod = function(score, b, h, q_idx, kv_idx) return score end,
}
