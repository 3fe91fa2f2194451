-- expect: sort_by_predefined.lua:3: table.sort: the order is a predefined function; write function(x, y) return .. end
local t = { 3, 1, 2 }
table.sort(t, math.ult)
return attention {}
