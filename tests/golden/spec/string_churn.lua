-- expect: string_churn.lua:3: memory cap: the spec allocated more than 1 GiB in all; build fewer strings and tables
local big = string.rep("x", 1000000)
for i = 1, 100000 do local s = big .. i end
