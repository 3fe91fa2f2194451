-- expect: field_line_twice.lua:6: input 'b1': grad is 3; it must be true or false
-- two inputs have a field of this name: the line is that of the input
return attention {
  inputs = {
    b0 = { axes = {"h"}, grad = true },
    b1 = { axes = {"h"}, dtype = "f32",
           grad = 3 },
  },
}
