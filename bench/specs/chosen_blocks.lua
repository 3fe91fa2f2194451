-- For each head and block of queries, a list of the blocks of keys that it sees, as in video sparse attention.
local BLOCK, COUNT = 64, 10
return attention {
  name = "chosen_blocks",
  inputs = { chosen = { axes = {"h", "qblocks", COUNT}, dtype = "i32" } },
  mask_mod = function(b, h, q_idx, kv_idx)
    local picked = eq(chosen[{h, q_idx // BLOCK, 0}], kv_idx // BLOCK)
    for i = 1, COUNT - 1 do picked = picked or eq(chosen[{h, q_idx // BLOCK, i}], kv_idx // BLOCK) end
    return picked
  end,
}
