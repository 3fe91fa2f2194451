-- expect: loop_in_file.lua:2: instruction budget: the spec ran more than 20000000 Lua instructions; bound its loops
while true do end
