-- expect: endless_tables.lua:3: memory cap: the spec used more than 64 MiB of Lua memory; keep less data, or pass it as an input; a function that calls itself needs an end
local t = {}
while true do t[#t + 1] = {} end
