-- A distance table times a parameter. The gradients of both need the table's value, one
-- of them unscaled.
return attention {
  inputs = { t = { axes = {"h", "n"}, grad = true }, w = { axes = {"h"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return (1 + 0.1 * w[h]) * (score + t[{h, (q_idx - kv_idx) // 3 + 40}])
  end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx + 60 end,
}
