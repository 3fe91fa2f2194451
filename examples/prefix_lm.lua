-- Prefix language model: all queries see the prefix; the rest is causal.
--   keep  kv < prefix[b] or kv <= q
-- T5 (Raffel et al. 2020), UniLM (Dong et al. 2019). One prefix length for each batch entry.
return attention {
  name = "prefix_lm",
  inputs = { prefix = { axes = {"b"}, dtype = "i32" } },
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx < prefix[b] or kv_idx <= q_idx end,
}
