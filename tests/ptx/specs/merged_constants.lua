-- Guards next to thresholds: simplified, the constants are 0.09999 below x and 0.0999 below s, whose float32 is off by 4e-4 and 4e-5 of what is left.
return attention {
  name = "merged_constants",
  score_mod = function(s, b, h, q, kv)
    local x = max(s, 0.1)
    return 1e-4 / (x - 0.1 + 1e-5) + where(s > 0.1, 1e-4 / (s - 0.1 + 1e-4), 0)
  end,
}
