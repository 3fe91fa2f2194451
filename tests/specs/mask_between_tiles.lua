-- Both halves of a tile of 128 keys are known to be empty, but not the whole.
return attention {
  name = "mask_between_tiles",
  block_mask = function(b, h, q_idx, kv_idx) return eq((q_idx // 64 - kv_idx // 64) % 4, 1) end,
}
