-- expect: input_and_global.lua:3: inputs: 'slopes' is already the name of a global of this file; choose another name
slopes = 1
return attention { inputs = { slopes = { axes = {"h"} } } }
