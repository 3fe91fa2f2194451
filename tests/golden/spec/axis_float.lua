-- expect: axis_float.lua:2: input 'x': an axis is the float 2.5; a size is an integer, 1 to 2147483647
return attention { inputs = { x = { axes = {2.5} } } }
