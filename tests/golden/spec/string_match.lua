-- expect: string_match.lua:2: 'string.match' is not available in a spec: pattern matching has no limit on its time
local n = ("abc"):match("b")
return attention {}
