-- expect: axis_size.lua:2: input 'x': axis size 0 must be 1 to 2147483647
return attention { inputs = { x = { axes = {0} } } }
