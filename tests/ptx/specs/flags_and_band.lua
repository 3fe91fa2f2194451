-- A flag of each score, and a band that is no constant of it.
return attention {
  name = "flags_and_band",
  inputs = { on = { axes = {"q", "kv"}, dtype = "bool" } },
  mask_mod = function(b, h, q_idx, kv_idx) return on[{q_idx, kv_idx}] and kv_idx <= q_idx + 40 and q_idx % 5 < 4 end,
}
