-- expect: while_one.lua:2: the number 1 stands where a condition is needed, and in Lua each number is true, 0 too; write true or false, compare it, as in x > 0, or ask whether it is given by x ~= nil
while 1 do end
return attention {}
