-- expect: field_of_table.lua:2: attention: field [a table] has no name; write name = value
return attention { [{}] = 2 }
