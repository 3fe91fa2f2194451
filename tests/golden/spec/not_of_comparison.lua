-- expect: not_of_comparison.lua:3: a traced number is negated: `not a < b` is (not a) < b; write `not (a < b)`
return attention { mask_mod = function(b, h, q_idx, kv_idx)
  return not q_idx < kv_idx
end }
