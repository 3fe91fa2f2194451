-- expect: too_many_axes.lua:2: input 'x': has 5 axes; inputs have 0 to 4
return attention { inputs = { x = { axes = {"b", "h", "q", "kv", 2} } } }
