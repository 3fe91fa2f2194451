-- expect: axes_without_field_of_two.lua:2: input 'w': its axes stand in a field of that name; write w = { axes = {"h", "q", 32} }
return attention { inputs = { w = { "h", "q", 32 } } }
