-- Streams whose tokens take turns in one sequence do not see each other, causal.
return attention {
  name = "streams_causal",
  inputs = { stream = { axes = {"n"}, dtype = "i32" } },
  mask_mod = function(b, h, q_idx, kv_idx) return eq(stream[q_idx], stream[kv_idx]) and kv_idx <= q_idx end,
}
