-- expect: field_line_predefined.lua:6: inputs: 'table' is already the name of something predefined; choose another name
-- expected at the field, and not where the table begins
return attention {
  inputs = {
    slopes = { axes = {"h"} },
    table = { axes = {"b", "q"}, dtype = "i32" },
  },
  block_mask = causal(),
}
