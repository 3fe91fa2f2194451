-- expect: string_growth.lua:3: memory cap: the spec made a string longer than 4 MiB; a spec needs no text but short names
local s = "x"
while true do s = s .. s end
