-- expect: scalar_with_zero.lua:2: scalars: 'c?d' is not a name; use letters, digits and _
return attention { scalars = { ["c\0d"] = 1 } }
