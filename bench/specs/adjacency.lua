-- Each token lies in a cell; a table says which cells see which.
return attention {
  name = "adjacency",
  inputs = { adjacent = { axes = {"cells", "cells2"}, dtype = "bool" }, cell = { axes = {"n"}, dtype = "i32" } },
  mask_mod = function(b, h, q_idx, kv_idx) return adjacent[{cell[q_idx], cell[kv_idx]}] end,
}
