-- expect: dtype_int64.lua:2: input 'ids': dtype 'int64' cannot be read; declare i32, or bool for flags, and convert the tensor, whose values must fit
return attention { inputs = { ids = { axes = {"q"}, dtype = "int64" } } }
