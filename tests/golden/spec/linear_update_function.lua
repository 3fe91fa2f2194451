-- expect: linear_update_function.lua:4: linear_attention: update is a function; it must be delta_rule(f), or a table of write, read, erase and before
return linear_attention {
  name   = "update",
  update = delta_rule,
}
