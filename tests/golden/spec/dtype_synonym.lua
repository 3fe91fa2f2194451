-- expect: dtype_synonym.lua:2: input 'x': dtype 'fp32' is written f32
return attention { inputs = { x = { axes = {"h"}, dtype = "fp32" } } }
