-- expect: length_assigned.lua:2: 'q_len' is predefined; choose another name, or write local q_len = ..
q_len = 128
return attention {}
