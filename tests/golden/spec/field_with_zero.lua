-- expect: field_with_zero.lua:2: attention: unknown field 'name?x'; did you mean 'name'?
return attention { ["name\0x"] = "a" }
