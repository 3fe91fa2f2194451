-- Linear terms of positions, alone and inside functions, with terms per row, column and head.
return attention {
  name = "positions",
  scalars = { a = 0.3 },
  inputs = {
    slopes = { axes = {"h"}, grad = true },
    place = { axes = {"kv"}, dtype = "i32" },
    key_bias = { axes = {"kv"}, grad = true },
    near = { axes = {"h", 9}, grad = true },
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local linear = slopes[h] * (3 - 2 * kv_idx) / kv_len
    local mixed = a * (0.5 * kv_idx - 0.25 * (q_idx + kv_idx)) / kv_len
    local real = (1.0 * kv_idx - 1.0 * q_idx) * slopes[h] / q_len
    local clipped = max(min(q_idx - kv_idx, 2 * kv_idx - 7), -(kv_idx // 3)) * 0.01
    local placed = 0.02 * (place[kv_idx] - kv_idx)
    local of_column = key_bias[kv_idx] * kv_idx / kv_len + exp(-a * kv_idx) * key_bias[kv_idx]
    local gathered = near[{h, floor(4 + 4 * (q_idx - kv_idx) / q_len)}]
    local factor = 1 + 0.1 * kv_idx / kv_len
    return score * factor + linear + mixed + real + clipped + placed + of_column + gathered
  end,
  block_mask = function(b, h, q_idx, kv_idx) return abs(q_idx - kv_idx) * 0.5 < 11 end,
}
