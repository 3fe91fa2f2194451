-- expect: guard_local.lua:3: '__table' is a name of luattn's own; choose another
local a = "__table"
local __table = 5
return attention {}
