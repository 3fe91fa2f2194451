-- expect: not_global_zero.lua:3: the number 0 stands where a condition is needed, and in Lua each number is true, 0 too; write true or false, compare it, as in x > 0, or ask whether it is given by x ~= nil
local skip = 0.0
if not skip then offset = 1 end
return attention {}
