-- expect: grad_on_byte.lua:2: input 'x': grad = true, but dtype u8 has no gradient; use f32, or leave grad out
return attention { inputs = { x = { axes = {"q"}, dtype = "uint8", grad = true } } }
