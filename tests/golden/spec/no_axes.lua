-- expect: no_axes.lua:2: input 'x': axes is nil; write axes = {"h"} and so on, one entry for each dimension, or {} for one number
return attention { inputs = { x = { dtype = "f32" } } }
