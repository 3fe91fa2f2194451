-- Gemma 3: text is causal in a window, and the tokens of an image see each other. A group of -1 is text.
local WINDOW = 1024
return attention {
  name = "image_groups",
  inputs = { group = { axes = {"b", "n"}, dtype = "i32" } },
  mask_mod = function(b, h, q_idx, kv_idx)
    local text = kv_idx <= q_idx and q_idx - kv_idx < WINDOW
    local of_q, of_kv = group[{b, q_idx}], group[{b, kv_idx}]
    return text or of_q >= 0 and eq(of_q, of_kv)
  end,
}
