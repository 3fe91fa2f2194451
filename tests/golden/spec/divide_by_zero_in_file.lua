-- expect-parts: divide_by_zero_in_file.lua:2: | attempt to | ; divide by max(n, 1)
local x = 5 % #""
return attention {}
