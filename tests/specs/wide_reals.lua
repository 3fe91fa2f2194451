-- Times in seconds as float64, more than float32 tells apart: compared and subtracted in float64 in kernels of every type.
return attention {
  inputs = { t = { axes = {"b", "n"}, dtype = "f64" }, u = { axes = {"b", "kv"} } },
  scalars = { window = 0.5 },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local apart = (t[{b, q_idx}] + 1764345600) - (t[{b, kv_idx}] + 1764345600)
    return score - 0.25 * abs(apart) - log1p(abs(t[{b, q_idx}] * 3 + 1e9 - (t[{b, kv_idx}] * 3 + 1e9))) + u[{b, kv_idx}] * t[{b, q_idx}] / 8
  end,
  block_mask = function(b, h, q_idx, kv_idx)
    local now, before = t[{b, q_idx}] + 1764345600, t[{b, kv_idx}] + 1764345600
    return before <= now and now - before < window + 1 or eq(q_idx, kv_idx) or u[{b, kv_idx}] + before > now + 1.25
  end,
}
