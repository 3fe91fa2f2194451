-- Guards next to thresholds. Kernels add 0.09999, of constants or of a scalar, and 0.0999 at once, whose float32 is off by 4e-4 and 4e-5 of
-- what is left, and fuse 0.1 * 3 - 0.3, which is then -7e-9 and not 0.
return attention {
  name = "merged_constants",
  scalars = { t = 0.1 },
  score_mod = function(s, b, h, q, kv)
    local x, y, d = max(s, 0.1), max(s, t), 0.1 * abs(q - kv) - 0.3
    return 1e-4 / (x - 0.1 + 1e-5) + where(s > 0.1, 1e-4 / (s - 0.1 + 1e-4), 0) + 1e-4 / (y - t + 1e-5) + 1e-4 / (abs(d) + 1e-5)
  end,
}
