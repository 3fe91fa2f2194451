-- expect: field_line_scalar.lua:5: scalars: 'cap' is a string; its value must be a number, the default
return attention {
  scalars = {
    w = 4,
    cap = "x",
  },
  block_mask = causal(),
}
