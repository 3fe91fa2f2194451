-- Functions of the distance, integer arithmetic, comparisons of scores, gathers out of range (clamped).
return attention {
  name = "distances",
  scalars = { c = 0.3 },
  inputs = { near = { axes = {"h", 9}, grad = true }, slopes = { axes = {"h"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local d = abs(q_idx - kv_idx)
    local s = score - c * log(1 + d) - slopes[h] * min(d, 7) + near[{h, q_idx - kv_idx + 4}]
    if kv_idx % 3 < 1 then s = s + max(score, 0.1) * 0.5 end
    return s - 0.2 * ((q_idx + kv_idx) // 5)
  end,
  block_mask = function(b, h, q_idx, kv_idx)
    local far = q_idx - kv_idx
    return (far >= -3 and far < 20) or kv_idx % 7 < 1
  end,
}
