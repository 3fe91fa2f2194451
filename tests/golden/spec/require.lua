-- expect: require.lua:2: 'require' is not available in a spec: a spec is one file and loads no further code
local torch = require("torch")
return attention {}
