-- expect: linear_twice.lua:3: linear_attention is called twice; one file is one spec
local a = linear_attention { name = "a" }
return linear_attention { name = "b" }
