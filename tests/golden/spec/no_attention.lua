-- expect: no_attention.lua: the file never calls attention; end it with: return attention { .. }
local x = 1
