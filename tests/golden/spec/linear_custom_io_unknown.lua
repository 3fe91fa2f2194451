-- expect: linear_custom_io_unknown.lua:6: custom_io has no 'dT'; declare it, as in custom_io = { dT = {"batch", "heads", "seq_len"} }
return linear_attention {
  name      = "engine",
  custom_io = { dt = {"batch", "heads", "seq_len"} },
  v_mod     = function(v, custom_io)
    return v * custom_io.dT
  end,
}
