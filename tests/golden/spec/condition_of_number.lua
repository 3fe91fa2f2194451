-- expect: condition_of_number.lua:3: a traced number stands where a condition is needed, and in Lua each number is true; compare it, as in x > 0 or ne(x, 0)
return attention { block_mask = function(b, h, q_idx, kv_idx)
  if kv_idx < 2 then return false elseif kv_idx - q_idx then return true end return false
end }
