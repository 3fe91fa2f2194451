-- A flag of each score of each head.
return attention {
  name = "elements",
  inputs = { on = { axes = {"h", "q", "kv"}, dtype = "bool" } },
  mask_mod = function(b, h, q_idx, kv_idx) return on[{h, q_idx, kv_idx}] end,
}
