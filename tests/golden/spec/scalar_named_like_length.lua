-- expect: scalar_named_like_length.lua:2: scalars: 'q_len' is already the name of something predefined; choose another name
return attention { scalars = { q_len = 1.0 } }
