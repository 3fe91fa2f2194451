-- Global and sliding-window attention: near keys, and a few tokens that see and are seen by all others.
--   keep  |q - kv| <= W or q < G or kv < G
-- Longformer (Beltagy et al. 2020), with the G global tokens in front.
local W, G = 128, 16
return attention {
  name = "longformer",
  block_mask = function(b, h, q_idx, kv_idx)
    return abs(q_idx - kv_idx) <= W or q_idx < G or kv_idx < G
  end,
}
