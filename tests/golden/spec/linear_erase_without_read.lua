-- expect: linear_erase_without_read.lua:5: update: erase without read: it removes what read has read of the state; give read as well
return linear_attention {
  name   = "erases",
  update = {
    erase = function(k) return k end,
  },
}
