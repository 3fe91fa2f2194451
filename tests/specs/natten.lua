-- A 2-D neighbourhood on a canvas, as attention-gym writes it.
local W, H, KW, KH = 16, 16, 5, 5
local function get_x_y(idx) return idx // W, idx % W end
return attention {
  mask_mod = function(b, h, q_idx, kv_idx)
    local q_x, q_y = get_x_y(q_idx)
    local kv_x, kv_y = get_x_y(kv_idx)
    local kernel_x = clamp(q_x, KW // 2, (W - 1) - KW // 2)
    local kernel_y = clamp(q_y, KH // 2, (H - 1) - KH // 2)
    local hori_mask = abs(kernel_x - kv_x) <= KW // 2
    local vert_mask = abs(kernel_y - kv_y) <= KH // 2
    return hori_mask and vert_mask
  end,
}
