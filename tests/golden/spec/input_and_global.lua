-- expect: input_and_global.lua:3: inputs: 'slopes' is already the name of a global of this file, which hooks would read in its place; choose another name for one of them
slopes = 1
return attention { inputs = { slopes = { axes = {"h"} } } }
