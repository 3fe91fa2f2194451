-- A table of distances inside what a parameter multiplies: the gradients of both want its number, one of them as it is.
return attention {
  inputs = { t = { axes = {"h", "n"}, grad = true }, w = { axes = {"h"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return (1 + 0.1 * w[h]) * (score + t[{h, (q_idx - kv_idx) // 3 + 40}])
  end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx + 60 end,
}
