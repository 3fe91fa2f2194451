-- expect: not_one.lua:2: the number 1 stands where a condition is needed, and in Lua each number is true, 0 too; write true or false, compare it, as in x > 0, or ask whether it is given by x ~= nil
return attention { block_mask = function(b, h, q_idx, kv_idx) return not 1 end }
