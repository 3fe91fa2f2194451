-- expect: endless_calls.lua:2: memory cap: the spec used more than 64 MiB of Lua memory; keep less data, or pass it as an input; a function that calls itself needs an end
local function f() return 1 + f() end
f()
return attention {}
