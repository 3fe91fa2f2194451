-- A table of the blocks of 128 keys that each block of 128 queries sees.
return attention {
  name = "block_table",
  inputs = { on = { axes = {"qblocks", "kvblocks"}, dtype = "bool" } },
  mask_mod = function(b, h, q_idx, kv_idx) return on[{q_idx // 128, kv_idx // 128}] end,
}
