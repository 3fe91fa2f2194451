-- expect: dtype_with_zero.lua:2: input 'w': dtype 'f32?' is not one of f64, f32, bf16, f16, i32, i64, i16, u8, bool, any
return attention { inputs = { w = { axes = { "h" }, dtype = "f32\0" } } }
