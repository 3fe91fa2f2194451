-- Coefficients and biases at every level: per head, row, column and element.
return attention {
  name = "rows_and_columns",
  scalars = { gain = 1.3 },
  inputs = {
    temperature = { axes = {"h", "q"}, grad = true },
    key_bias = { axes = {"b", "kv"}, grad = true },
    query_bias = { axes = {"q"}, grad = true },
    use = { axes = {"b", "kv"}, dtype = "bool" },
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local t = (score - query_bias[q_idx]) * temperature[{h, q_idx}] + key_bias[{b, kv_idx}] * gain
    return t / (1 + gain * gain) + 0.01 * (kv_idx - q_idx) - query_bias[q_idx] * key_bias[{b, kv_idx}]
  end,
  block_mask = function(b, h, q_idx, kv_idx) return use[{b, kv_idx}] or eq(q_idx, kv_idx) end,
}
