-- expect: tostring_of_traced.lua:4: a traced number is made a string, but its value is not known yet; a hook computes with numbers, and `luattn emit --stage ir` shows the trace
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score * #tostring(q_idx)
  end,
}
