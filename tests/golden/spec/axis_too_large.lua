-- expect: axis_too_large.lua:2: input 'x': axis size 3000000000 must be 1 to 2147483647
return attention { inputs = { x = { axes = {3000000000} } } }
