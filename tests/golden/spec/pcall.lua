-- expect: pcall.lua:2: 'pcall' is not available in a spec: an error ends the run
pcall(function() error("x") end)
return attention {}
