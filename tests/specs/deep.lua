-- An expression of a hundred operations.
return attention {
  scalars = { a = 0.9, c = 0.1 },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local x = score
    for i = 1, 16 do x = a * tanh(x + c * i) + 0.01 * x * (kv_idx % (i % 7 + 2)) end
    return x
  end,
}
