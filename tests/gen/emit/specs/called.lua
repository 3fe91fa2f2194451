-- Three sines of a score: too long to inline, so the hooks become called functions. One gradient goes to a
-- block sum (c), another to memory (bias).
return attention {
  name = "called",
  scalars = { c = 0.4 },
  inputs = { bias = { axes = {"q", "kv"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local x = score + bias[{q_idx, kv_idx}]
    for i = 1, 3 do x = x + c * sin(i * x) end
    return x
  end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end,
}
