-- Gradients that take a row pass: prob is no multiple of its derivative by `a`, through which every score moves the gate of its row. Rows
-- of padding keep nothing, and 1 / l of them is infinite.
return attention {
  name = "row_pass",
  inputs = { bias = { axes = { "h", "kv" }, grad = true }, gate = { axes = { "h", "q" }, grad = true } },
  scalars = { t = 0.7 },
  mask_mod = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx and q_idx % 16 < 13 end,
  score_mod = function(s, b, h, q_idx, kv_idx) return s + bias[{ h, kv_idx }] end,
  online_func = {
    online_rowscales = { a = 0, l = 0 },
    final_rowscales = { "a", "l" },
    online_fwd = function(scores, r)
      local p = sigmoid(scores * t)
      return p + 0.1 * p * p / (1 + p), { a = r.a + reduce_sum(p), l = r.l + reduce_sum(p * p) }, 1
    end,
    online_fwd_epilogue = function(o, r, b, h, q_idx)
      return o * gate[{ h, q_idx }] * tanh(r.a * t) / sqrt(r.l), { a = r.a, l = r.l }
    end,
  },
}
