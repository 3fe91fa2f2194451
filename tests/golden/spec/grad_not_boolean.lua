-- expect: grad_not_boolean.lua:2: input 'x': grad is 1; it must be true or false
return attention { inputs = { x = { axes = {"h"}, grad = 1 } } }
