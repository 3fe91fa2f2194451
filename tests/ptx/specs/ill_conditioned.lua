-- Differences of large numbers, and a large bias of the row that changes nothing: float32 loses digits of both, kernels and plain
-- arithmetic alike.
return attention {
  scalars = { c = 100 },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return sqrt(score * score + 4e6) * 30 - 60000 + 0.1 * kv_idx - q_idx * c
  end,
  block_mask = causal(),
}
