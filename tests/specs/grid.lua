-- A grid with rows of 40 positions. The mask keeps an interval in each grid row, within a band.
local W = 40
return attention {
  name = "grid",
  score_mod = alibi(),
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx <= q_idx + 7 and q_idx % W - 3 - h <= kv_idx % W and kv_idx % W <= q_idx % W + 9 and q_idx // W <= kv_idx // W + 2
  end,
}
