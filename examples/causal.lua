-- Causal attention: a query sees the keys up to its own position.
--   keep  kv <= q        (top-left: the first query sees the first key alone)
-- Vaswani et al. 2017; torch's is_causal. For q_len < kv_len with a cache, see causal_bottom_right.lua.
return attention {
  name = "causal",
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end,
}
