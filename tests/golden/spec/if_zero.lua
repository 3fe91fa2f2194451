-- expect: if_zero.lua:3: the number 0 stands where a condition is needed, and in Lua each number is true, 0 too; write true or false, compare it, as in x > 0, or ask whether it is given by x ~= nil
return attention { block_mask = function(b, h, q_idx, kv_idx)
  if 0 then return true end
  return kv_idx <= q_idx
end }
