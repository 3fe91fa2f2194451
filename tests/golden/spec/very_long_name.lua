-- expect: very_long_name.lua:2: scalars: the name 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..' has 1000 characters; the limit is 63
return attention { scalars = { [("a"):rep(1000)] = 1 } }
