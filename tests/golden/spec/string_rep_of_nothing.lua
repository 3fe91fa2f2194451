-- expect: string_rep_of_nothing.lua:2: string.rep: an empty string is repeated 1000000000000000000 times; the limit is 1048576
local s = string.rep("", 1e18 // 1 | 0)
return attention {}
