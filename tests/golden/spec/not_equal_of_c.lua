-- expect-parts: not_equal_of_c.lua:5: | ; Lua writes ~= for != and `not` for !, and traced numbers compare by ne(a, b)
return attention {
  inputs = { slopes = { axes = {"h"} }, keep = { axes = {"b", "kv"}, dtype = "bool" }, gate = { axes = {"hkv"} } },
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx != q_idx
  end,
}
