-- Scores of which a few come near their cap, so that some tiles have only small ones.
return attention {
  score_mod = softcap(12),
  block_mask = causal(),
}
