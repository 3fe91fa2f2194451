-- expect: linear_update_field.lua:4: update: unknown field 'reads'; did you mean 'read'?
return linear_attention {
  name   = "update",
  update = { write = function(b, h, t) return 1 end, reads = true },
}
