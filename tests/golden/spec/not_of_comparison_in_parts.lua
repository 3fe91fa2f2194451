-- expect: not_of_comparison_in_parts.lua:3: a traced number is negated: `not a < b` is (not a) < b; write `not (a < b)`
return attention { mask_mod = function(b, h, q_idx, kv_idx)
  return kv_idx > 4 and (not (q_idx - kv_idx) <= max(b, 7) or h < 3)
end }
