-- expect: scalar_named_keyword.lua:2: scalars: 'end' is a keyword of Lua, which no hook can read; choose another name
return attention { scalars = { ["end"] = 1 } }
