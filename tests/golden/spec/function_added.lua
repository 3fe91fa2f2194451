-- expect: function_added.lua:3: +: a function stands where a number is needed; call it, as in softcap(50)(score, b, h, q_idx, kv_idx)
return attention { score_mod = function(score, b, h, q_idx, kv_idx)
  return score + alibi()
end }
