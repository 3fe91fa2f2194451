-- expect: table_by_traced.lua:5: a Lua table is indexed by a traced number, whose value is not known yet; pass the table as an input and gather from it, or choose with where()
local slopes = { 0.5, 0.25 }
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score * slopes[h + 1]
  end,
}
