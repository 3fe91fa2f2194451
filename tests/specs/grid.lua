-- Rows of 40 positions: an interval in each of them, in those that a band leaves.
local W = 40
return attention {
  name = "grid",
  score_mod = alibi(),
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx <= q_idx + 7 and q_idx % W - 3 - h <= kv_idx % W and kv_idx % W <= q_idx % W + 9 and q_idx // W <= kv_idx // W + 2
  end,
}
