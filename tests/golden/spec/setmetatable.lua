-- expect: setmetatable.lua:2: 'setmetatable' is not available in a spec: tables of a spec are plain data
local t = setmetatable({}, {})
return attention {}
