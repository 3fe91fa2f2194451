-- expect: dtype.lua:2: input 'x': dtype 'real' is not one of f64, f32, bf16, f16, i32, i64, i16, u8, bool, any
return attention { inputs = { x = { axes = {"h"}, dtype = "real" } } }
