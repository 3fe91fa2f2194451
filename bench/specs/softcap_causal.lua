-- Soft-capped causal attention with a constant cap, as in benchmarks of FlexAttention.
--   50 * tanh(s / 50),   keep  kv <= q
-- Gemma 2 (Google 2024). A constant cap lets the compiler bound the score; examples/gemma2.lua has a scalar.
return attention {
  name = "softcap_causal",
  score_mod = softcap(50),
  block_mask = causal(),
}
