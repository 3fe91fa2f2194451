-- expect: linear_custom_io_axis.lua:4: custom_io: 'dt': axis 'time' is none of "batch", "heads", "seq_len" and sizes
return linear_attention {
  name      = "engine",
  custom_io = { dt = {"batch", "heads", "time"} },
}
