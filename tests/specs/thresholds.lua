-- Comparisons, and steps of whole numbers, that a last bit decides: float32's products of positions lie at integers, or beside
-- them, where those of real numbers do not. Kernels, the CPU path and torch round each operation alike.
return attention {
  inputs = { x = { axes = {"h", "kv"} } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local near = where(q_idx * 0.1 - kv_idx * 0.1 - 0.3 >= 0, 0.5, 0)
    local row = where(q_idx * 0.1 - 0.3 >= 0 and kv_idx / 3 <= q_idx / 7, 0.25, 0)
    return score + near + row + floor(kv_idx * 0.7) % 5 / 8 + (q_idx * 0.7) // 1 % 3 / 4
  end,
  block_mask = function(b, h, q_idx, kv_idx)
    return kv_idx <= q_idx * 0.7 + 40 and kv_idx * 0.7 - 2.1 <= q_idx * 0.7 or kv_idx <= q_idx / 3 or x[{h, kv_idx}] * 0.1 + 0.3 > 0.5
  end,
}
