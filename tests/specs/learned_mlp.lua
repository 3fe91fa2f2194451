-- More learned numbers than a thread has registers to sum their gradients in: an MLP of the log distance, which is
-- NaN where the mask drops a score; beside it a table that each score adds to, and a number of the values.
local WIDTH = 24
return attention {
  inputs = {
    w1 = { axes = { WIDTH }, grad = true },
    b1 = { axes = { WIDTH }, grad = true },
    w2 = { axes = { WIDTH, "h" }, grad = true },
    bend = { axes = { "h", 8 }, grad = true },
    gain = { axes = {}, grad = true },
  },
  value_mod = function(x) return x * gain end,
  score_mod = function(score, b, h, q_idx, kv_idx)
    local x = log(q_idx - kv_idx + 0.5)
    local out = score + bend[{ h, (3 * q_idx + kv_idx) % 8 }] * tanh(score)
    for i = 0, WIDTH - 1 do out = out + relu(w1[i] * x + b1[i]) * w2[{ i, h }] end
    return out
  end,
  mask_mod = causal(),
}
