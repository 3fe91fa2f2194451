-- expect: linear_unknown_field.lua:4: linear_attention: unknown field 'decay_min'; its fields are name, scalars, inputs, query_mod, key_mod, value_mod, decay, update, skip, normalize, scale
return linear_attention {
  name      = "field",
  decay_min = -5,
}
