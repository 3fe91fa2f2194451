-- Lists of 70 blocks of 4 keys, so that a warp's keys are of several; 16 bits each.
return attention {
  name = "narrow_lists",
  inputs = { chosen = { axes = {"h", "q", 70}, dtype = "i16" } },
  mask_mod = function(b, h, q_idx, kv_idx)
    local on = false
    for i = 0, 69 do on = on or eq(chosen[{h, q_idx, i}], kv_idx // 4) end
    return on and kv_idx <= q_idx + 9
  end,
}
