-- expect: scalar_assigned.lua:6: 'cap' is assigned, but attention { .. } declares it; choose another name for one of them
spec = attention {
  scalars = { cap = 1.5 },
  score_mod = function(score) return score * cap end,
}
cap = 30
return spec
