-- Classification finds both halves of a tile of 128 keys empty, but not the tile itself.
return attention {
  name = "mask_between_tiles",
  block_mask = function(b, h, q_idx, kv_idx) return eq((q_idx // 64 - kv_idx // 64) % 4, 1) end,
}
