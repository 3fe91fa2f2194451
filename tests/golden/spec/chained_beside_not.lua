-- expect: chained_beside_not.lua:3: < on a condition: comparisons do not chain; write 0 <= x and x < 5 for 0 <= x < 5
return attention { mask_mod = function(b, h, q_idx, kv_idx)
  return not (q_idx < kv_idx) or 0 <= h < 5 or not (h < 2)
end }
