-- Inputs without axes: single numbers in device memory.
return attention {
  inputs = {
    temperature = { axes = {}, grad = true },
    bend = { axes = {}, dtype = "bf16", grad = true },
    slope = { axes = {}, dtype = "f64", grad = true },
    sink = { axes = {}, dtype = "f16", grad = true },
    width = { axes = {}, dtype = "i32" },
    both_sides = { axes = {}, dtype = "bool" },
    scale_v = { axes = {}, grad = true },
  },
  value_mod = function(x) return x * scale_v end,
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score * exp(temperature) + bend * tanh(score) - slope * abs(q_idx - kv_idx) / kv_len
  end,
  mask_mod = function(b, h, q_idx, kv_idx)
    if both_sides then return abs(q_idx - kv_idx) <= width end
    return kv_idx <= q_idx and q_idx - kv_idx <= width
  end,
  online_func = attention_sink("sink"),
}
