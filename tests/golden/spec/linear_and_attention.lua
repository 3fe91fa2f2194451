-- expect: linear_and_attention.lua:3: both attention and linear_attention are called; one file is one spec
local a = attention { name = "a" }
return linear_attention { name = "b" }
