-- Hooks of hundreds of instructions, which kernels call instead of inlining: for the score, its gradients
-- (summed by the block and by atomics), the mask, and values hoisted per row and per column.
local function waves(x)
  local sum = 0
  for i = 1, 4 do sum = sum + sin(x * 0.03 * i) / i end
  return sum
end

return attention {
  scalars = { w = 0.3, c = 0.7 },
  inputs = {
    bias = { axes = {"q", "kv"}, grad = true },
    slope = { axes = {"h"}, grad = true },
    across = { axes = {"q"} },
    along = { axes = {"kv"} },
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local x, y = score, bias[{q_idx, kv_idx}] + 0.1 * waves(q_idx + across[q_idx]) * waves(kv_idx - along[kv_idx])
    for i = 1, 4 do
      y = y + 0.1 * sin(w * i * x + slope[h])
      x = 0.5 * softplus(x) + 0.2 * pow(0.5 + y * y, c) - 0.1 * log1p(x * x)
    end
    return x + y
  end,
  block_mask = function(b, h, q_idx, kv_idx)
    local sum = 0
    for i = 2, 9 do sum = sum + (q_idx * i + kv_idx) % (2 * i + 1) end
    return sum > 20
  end,
}
