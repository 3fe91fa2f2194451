-- expect: predefined_assigned.lua:2: 'exp' is predefined; choose another name, or write local exp = ..
exp = 2.718
return attention {}
