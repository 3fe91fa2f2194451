-- expect: condition_negated.lua:3: a traced number stands where a condition is needed, and in Lua each number is true; compare it, as in x > 0 or ne(x, 0)
return attention { block_mask = function(b, h, q_idx, kv_idx)
  return not kv_idx
end }
