-- BigBird: the first and the last block see and are seen by all, three lie around the diagonal, and three are drawn at
-- random for each head and block of queries.
local BLOCK, COUNT = 64, 3
return attention {
  name = "bigbird",
  inputs = { chosen = { axes = {"h", "qblocks", COUNT}, dtype = "i32" } },
  mask_mod = function(b, h, q_idx, kv_idx)
    local i, j, last = q_idx // BLOCK, kv_idx // BLOCK, (kv_len - 1) // BLOCK
    local keep = abs(i - j) <= 1 or i < 1 or j < 1 or i >= last or j >= last
    for r = 0, COUNT - 1 do keep = keep or eq(chosen[{h, i, r}], j) end
    return keep
  end,
}
