-- each head has a table of the blocks of keys that a block of queries sees
return attention {
  name = "block_table",
  inputs = { on = { axes = {"h", "qblocks", "kvblocks"}, dtype = "bool" } },
  mask_mod = function(b, h, q_idx, kv_idx)
    local i, j = q_idx // 64, kv_idx // 64
    return eq(i, j) or (i < 8 and j < 8 and on[{h, i, j}] and on[{h, j, i}] and on[{h, min(i, j), max(i, j)}])
  end,
}
