-- Bit operations: each query's 32-bit set of ancestors in a tree of drafts, and Z order of 16 grid columns.
local function column(c) -- the even bits
  local x = 0
  for i = 0, 3 do x = x | (c >> 2 * i & 1) << i end
  return x
end
return attention {
  inputs = {
    ancestors = { axes = {"b", "q"}, dtype = "i32" },
    flags = { axes = {"kv"}, dtype = "i32" },
    bias = { axes = {8}, grad = true },
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local flag = flags[kv_idx] - 2 -- of either sign
    local mixed = (flag ~ q_idx) & ~3 | h
    return score + bias[(mixed >> 2) & 7] + 0.01 * (1 << (kv_idx & 3)) - 0.5 * (flag >> 33 & 1) + 0.01 * (max(flag, 0) >> h)
  end,
  mask_mod = function(b, h, q_idx, kv_idx)
    local node = kv_idx - (kv_len - q_len)
    if node >= 0 then return ne(~ancestors[{b, q_idx}] >> node & 1, 0) and ne(node << 1 & 6, 2) or eq(node, q_idx) end
    return abs(column(q_idx) - column(kv_idx)) <= 2 or eq((q_idx ~ kv_idx) >> 2, 5) or (q_idx | kv_idx) < 4
  end,
}
