-- Integers of 64 bits at the ends of these, where sums wrap around, and beyond 32 bits as limits of positions.
return attention {
  inputs = { w = { axes = {"h"}, dtype = "i64" } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local far = (w[h] // 4 * 4 + 1 + h) % 4 * 9007199254740992 * 512 -- 2^62, -2^63, -2^62, 0
    return where(kv_idx + far - 40 < q_idx + far, score, score / 2)
  end,
  block_mask = function(b, h, q_idx, kv_idx)
    local far = (w[h] // 4 * 4 + 1 + h) % 4 * 9007199254740992 * 512
    return kv_idx < far // 4 + 30 or q_idx + far - 50 >= kv_idx or (kv_idx - w[h] <= q_idx and kv_idx >= q_idx)
  end,
}
