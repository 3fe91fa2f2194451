-- expect: io.lua:2: 'io' is not available in a spec: a spec reads and writes no files
local f = io.open("/etc/passwd")
return attention {}
