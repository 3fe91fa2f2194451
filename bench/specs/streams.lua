-- Streams whose tokens take turns in one sequence do not see each other.
return attention {
  name = "streams",
  inputs = { stream = { axes = {"n"}, dtype = "i32" } },
  mask_mod = function(b, h, q_idx, kv_idx) return eq(stream[q_idx], stream[kv_idx]) end,
}
