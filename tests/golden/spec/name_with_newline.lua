-- expect: name_with_newline.lua:2: attention: name 'a?b' contains the byte 10; use letters, digits, _, - and .
return attention { name = "a\nb" }
