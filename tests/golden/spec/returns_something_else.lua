-- expect: returns_something_else.lua:2: the file returns a table instead of its attention { .. }; end it with: return attention { .. }
local spec = attention {}
return { spec }
