-- expect: name_with_zero.lua:2: attention: name 'a?b' contains the byte 0; use letters, digits, _, - and .
return attention { name = "a\0b" }
