-- Rotary position embedding as mods of q and k, in the layout of GPT-NeoX and Llama. No kernel runs before
-- attention: q and k are the outputs of their projections.
--   q'[d] = q[d] cos - q[d + D/2] sin,   q'[d + D/2] = q[d + D/2] cos + q[d] sin,   likewise k'
-- with cos and sin of pos * theta^(-2 d / D), in tables with a row per position and D/2 columns.
-- Su et al. 2021; causal. rotary_interleaved pairs channels 2i and 2i + 1, as GPT-J does; with
-- { channels = 32 } only the first 32 channels are rotated, and { positions = "ids" } reads row ids[pos].
return attention {
  name = "rotary",
  inputs = { cosine = { axes = {"position", "pair"} }, sine = { axes = {"position", "pair"} } },
  query_mod = rotary("cosine", "sine"),
  key_mod = rotary("cosine", "sine"),
  block_mask = causal(),
}
