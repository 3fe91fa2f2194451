-- Arithmetic on numbers of both positions, which no bounds of them decide.
return attention {
  name = "hashed",
  inputs = { number = { axes = {"n"}, dtype = "i32" } },
  mask_mod = function(b, h, q_idx, kv_idx) return (number[q_idx] * 43 + number[kv_idx] * 29) % 64 < 63 end,
}
