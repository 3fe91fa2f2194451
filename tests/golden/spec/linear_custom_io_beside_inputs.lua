-- expect: linear_custom_io_beside_inputs.lua:5: linear_attention: both custom_io and inputs are given; declare all of them in inputs, and name the mods query_mod and so on
return linear_attention {
  name      = "engine",
  inputs    = { g = { axes = {"b", "t", "hv"} } },
  custom_io = { dt = {"batch", "heads", "seq_len"} },
}
