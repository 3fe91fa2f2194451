-- expect: global_table_kept.lua:3: score_mod: gives another result when it is called again; a hook must not keep anything between calls, nor go by the order of pairs, so use its arguments, inputs, scalars and locals
state = { n = 0 }
return attention { score_mod = function(score)
  state.n = state.n + 1
  return score + state.n
end }
