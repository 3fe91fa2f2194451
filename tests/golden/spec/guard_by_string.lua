-- expect-parts: guard_by_string.lua:3: undefined name '__table'
return attention { score_mod = function(score, b, h, q_idx, kv_idx)
  return score + _ENV["__table"]("abc")
end }
