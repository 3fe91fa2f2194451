-- expect: attention_assigned.lua:2: 'attention' is predefined; choose another name, or write local attention = ..
attention = 3
return attention {}
