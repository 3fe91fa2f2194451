-- expect: string_rep.lua:2: string.rep: the result would be larger than 1048576 bytes
local s = string.rep("x", 1 << 30)
return attention {}
