-- xPos' length scaling, by mods of q and k: a decay with distance that needs no bias.
--   q' = q * zeta_d^(pos / 512),   k' = k / zeta_d^(pos / 512),   zeta_d = (2 floor(d / 2) / D + 0.4) / 1.4
-- Sun et al. 2022; causal. rotary.lua has the rotation, to be chained with this spec, which has the
-- elementwise part and a learned gate on v.
local D = 64
local function power(pos, d)
  local zeta = (2 * (d // 2) / D + 0.4) / 1.4
  return log2(zeta) * pos / 512
end
return attention {
  name = "xpos",
  inputs = { gate = { axes = {"hkv", "channel"}, grad = true } },
  query_mod = function(x, b, h, pos, d) return x * exp2(power(pos, d)) end,
  key_mod = function(x, b, h, pos, d) return x * exp2(-power(pos, d)) end,
  value_mod = function(x, b, h, pos, d) return x * sigmoid(gate[{h, d}]) end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end,
}
