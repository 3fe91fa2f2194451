-- Lists of chosen blocks of 16 keys: of each query 16, beside its own, and of each 24 queries 20 that are not. Kernels read them
-- where they lie.
return attention {
  name = "lists",
  inputs = { chosen = { axes = {"b", "hkv", "q", 16}, dtype = "i32" }, dropped = { axes = {20, "qcells", "h"}, dtype = "i32" } },
  mask_mod = function(b, h, q_idx, kv_idx)
    local on, off = eq(q_idx // 16, kv_idx // 16), false
    for i = 0, 15 do on = on or eq(chosen[{b, h // (heads // heads_kv), q_idx, i}], kv_idx // 16) end
    for i = 0, 19 do off = off or eq(dropped[{i, q_idx // 24, h}], kv_idx // 16) end
    return kv_idx <= q_idx + 40 and on and not off
  end,
}
