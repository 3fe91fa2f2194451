-- expect: dtype_uint64.lua:2: input 'ids': dtype 'uint64' cannot be read; declare i32, i64, i16, u8, or bool for flags, and convert the tensor, whose values must fit
return attention { inputs = { ids = { axes = {"q"}, dtype = "uint64" } } }
