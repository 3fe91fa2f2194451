-- expect: axis_synonym.lua:2: input 'x': axis 'heads' is written 'h'
return attention { inputs = { x = { axes = {"heads"} } } }
