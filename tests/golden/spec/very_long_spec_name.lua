-- expect: very_long_spec_name.lua:2: attention: name 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..' has 1000 characters; it must have 1 to 63
return attention { name = ("a"):rep(1000) }
