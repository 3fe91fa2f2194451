-- Of a tile of 128 keys both halves are seen to be empty where the whole is not.
return attention {
  name = "mask_between_tiles",
  block_mask = function(b, h, q_idx, kv_idx) return eq((q_idx // 64 - kv_idx // 64) % 4, 1) end,
}
