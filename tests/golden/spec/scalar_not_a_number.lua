-- expect: scalar_not_a_number.lua:2: scalars: 'cap' is a string; its value must be a number, the default
return attention { scalars = { cap = "50" } }
