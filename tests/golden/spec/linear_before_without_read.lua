-- expect: linear_before_without_read.lua:5: update: before without read: it says that read reads the state before its decay; give read as well
return linear_attention {
  name   = "before",
  update = {
    before = true,
  },
}
