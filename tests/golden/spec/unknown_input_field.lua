-- expect: unknown_input_field.lua:3: input 'slopes': unknown field 'axis'; did you mean 'axes'?
return attention {
  inputs = { slopes = { axis = {"h"} } },
}
