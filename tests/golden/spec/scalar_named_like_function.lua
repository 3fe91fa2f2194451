-- expect: scalar_named_like_function.lua:2: scalars: 'exp' is already the name of something predefined; choose another name
return attention { scalars = { exp = 1.0 } }
