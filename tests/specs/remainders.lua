-- Remainders and whole quotients of real numbers, of positions and of learned numbers, and sines, whose reduction in double is
-- by integers with carries.
return attention {
  inputs = { f = { axes = {"h"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local phase = (f[h] * (q_idx - kv_idx)) % 1.0 + (q_idx * 0.37) // 1.5 % 2
    return score + phase + sin(f[h] * (q_idx - kv_idx)) / 4
  end,
  block_mask = function(b, h, q_idx, kv_idx) return (q_idx * 0.5) % 7.5 >= (kv_idx * 0.25) % 2 and kv_idx <= q_idx + 40 end,
}
