-- expect: axis_with_zero.lua:2: input 'w': axis 'h?' is not a name; use letters, digits and _
return attention { inputs = { w = { axes = { "h\0" } } } }
