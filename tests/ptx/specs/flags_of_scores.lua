-- A flag of each score, which kernels read by lines of 16.
return attention {
  name = "flags_of_scores",
  inputs = { on = { axes = {"h", "q", "kv"}, dtype = "bool" } },
  mask_mod = function(b, h, q_idx, kv_idx) return on[{h, q_idx, kv_idx}] end,
}
