-- Causal, with a flag for each token that is no padding.
return attention {
  name = "padding",
  inputs = { real = { axes = {"b", "n"}, dtype = "bool" } },
  mask_mod = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx and real[{b, q_idx}] and real[{b, kv_idx}] end,
}
