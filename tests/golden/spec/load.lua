-- expect: load.lua:2: 'load' is not available in a spec: a spec is one file and loads no further code
local f = load("return 1")
return attention {}
