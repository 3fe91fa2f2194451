-- expect: axis_size.lua:2: input 'x': axis size 0 must be at least 1
return attention { inputs = { x = { axes = {0} } } }
