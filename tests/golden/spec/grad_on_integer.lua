-- expect: grad_on_integer.lua:2: input 'x': grad = true, but dtype i32 has no gradient; use f32, or leave grad out
return attention { inputs = { x = { axes = {"h"}, dtype = "i32", grad = true } } }
