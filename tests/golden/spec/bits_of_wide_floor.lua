-- expect: bits_of_wide_floor.lua:4: & takes integers of 32 bits, and floor(x) of an f64 input is not bound to them; write clamp(floor(x), 0, 2147483647)
return attention {
  inputs = { t = { axes = {"kv"}, dtype = "f64" } },
  block_mask = function(b, h, q_idx, kv_idx) return eq(floor(t[kv_idx]) & 3, 1) end,
}
