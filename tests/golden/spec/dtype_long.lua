-- expect: dtype_long.lua:2: input 'ids': dtype 'long' is written i64
return attention { inputs = { ids = { axes = {"q"}, dtype = "long" } } }
