-- A maximum that does not cancel: eps stands beside what is scaled with exp(-m), so that one score of each row takes m's derivative. m starts at 0.3,
-- which some rows do not reach; rows of padding keep nothing.
return attention {
  name = "row_maximum",
  inputs = { bias = { axes = { "h", "kv" }, grad = true } },
  scalars = { eps = 1.5 },
  mask_mod = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx + 7 and q_idx % 16 < 13 end,
  score_mod = function(s, b, h, q_idx, kv_idx) return s + bias[{ h, kv_idx }] - 0.5 * (q_idx % 5) end,
  online_func = {
    online_rowscales = { m = 0.3, l = 0 },
    final_rowscales = { "m", "l" },
    online_fwd = function(scores, r)
      local m = max(r.m, reduce_max(scores))
      local shift, e = exp(r.m - m), exp(scores - m) - exp(-m)
      return relu(e), { m = m, l = r.l * shift + reduce_sum(abs(e)) }, shift
    end,
    online_fwd_epilogue = function(o, r) return o * (1 + 0.2 * sin(r.m)) / (r.l + eps), { m = r.m, l = r.l } end,
  },
}
