-- Like large_hooks.lua, for the other hooks: P and its row sum, and the mods of q, k and v.
local function waves(x, n, c)
  local sum = 0
  for i = 1, n do sum = sum + sin(x * c * i) / i end
  return sum
end

local function weight(score)
  local p = score
  for i = 1, 6 do p = 0.5 * softplus(p) + 0.3 * log1p(p * p) end
  return p
end

return attention {
  scalars = { a = 0.4, c = 0.6 },
  inputs = { wk = { axes = {"hkv"}, grad = true }, wv = { axes = {"kv"}, grad = true } },
  query_mod = function(x, b, h, i, d) return x + a * waves(x + i * 0.01, 4, 1) end,
  key_mod = function(x, b, h, i, d) return x * wk[h] + 0.3 * waves(x, 4, c) end,
  value_mod = function(x, b, h, i, d) return waves(x, 4, 1.1) + wv[i] * sin(x + 0.01 * d) end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end,
  online_func = {
    name = "large_weight",
    online_rowscales = { l = 0 },
    final_rowscales = { "norm" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local p = weight(scores)
      return p, { l = rowscales.l + reduce_sum(p) }
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      local norm = 1 + rowscales.l
      return o / norm, { norm = norm }
    end,
  },
}
