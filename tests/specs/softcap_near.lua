-- A few scores come near their cap, so that only some tiles have only small ones.
return attention {
  score_mod = softcap(12),
  block_mask = causal(),
}
