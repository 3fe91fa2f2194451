-- expect: number_as_positions.lua:4: document: ids_q: 'ids' is one number; name an input with an axis for the position
return attention {
  inputs = { ids = { axes = {}, dtype = "i32" } },
  mask_mod = document("ids"),
}
