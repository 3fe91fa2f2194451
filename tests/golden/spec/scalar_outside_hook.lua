-- expect: scalar_outside_hook.lua:2: undefined name 'cap' (inputs, scalars and lengths exist only inside hooks)
local half = cap / 2
return attention { scalars = { cap = 50.0 } }
