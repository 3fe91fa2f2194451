-- expect: environment_by_traced.lua:4: a Lua table is indexed by a traced number, whose value is not known yet; pass the table as an input and gather from it, or choose with where()
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score * (_ENV[q_idx] or 1)
  end,
}
