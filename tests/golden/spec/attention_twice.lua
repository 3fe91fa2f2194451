-- expect: attention_twice.lua:3: attention is called twice; one file is one spec
local a = attention { name = "a" }
return attention { name = "b" }
