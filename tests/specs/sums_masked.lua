-- A factor of dS that is infinite or NaN at masked scores, and tiles that are skipped.
return attention {
  inputs = { w = { axes = {"h"}, grad = true }, t = { axes = {"h", "n"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local n = q_idx - kv_idx
    return 2 * score + w[h] * log(n) + t[{h, n // 5}]
  end,
  block_mask = function(b, h, q_idx, kv_idx)
    local n = q_idx - kv_idx
    return n > 0 and (n < 50 or n > 230)
  end,
}
