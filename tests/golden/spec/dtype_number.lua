-- expect: dtype_number.lua:2: input 'x': dtype is 3; it must be a name in quotes: f64, f32, bf16, f16, i32, i64, i16, u8, bool or any
return attention { inputs = { x = { axes = {"h"}, dtype = 3 } } }
