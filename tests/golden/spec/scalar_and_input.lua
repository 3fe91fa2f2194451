-- expect: scalar_and_input.lua:2: inputs: 'a' is also the name of a scalar; choose another name
return attention { scalars = { a = 1.0 }, inputs = { a = { axes = {"h"} } } }
