-- expect: string_growth.lua:3: memory cap: the spec used more than 64 MiB of Lua memory; keep less data, or pass it as an input
local s = "x"
while true do s = s .. s end
