-- Heads whose output a gate leaves out: its value is 0 in every other head, and its slope is not. Rows of padding keep nothing, and
-- read a gate of their own.
return attention {
  name = "zero_gate",
  inputs = { g = { axes = {"h"}, grad = true }, w = { axes = {"h", "q"}, grad = true } },
  mask_mod = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx and q_idx < 50 end,
  online_func = {
    online_rowscales = { m = -1e37, l = 0 },
    final_rowscales = { "lse" },
    online_fwd = function(scores, r)
      local m = max(r.m, reduce_max(scores))
      local a = exp(r.m - m)
      local p = exp(scores - m)
      return p, { m = m, l = r.l * a + reduce_sum(p) }, a
    end,
    online_fwd_epilogue = function(o, r, b, h, q_idx)
      local gate = tanh(g[h] - stop_gradient(g[h]) * (1 - h % 2))
      return o * gate * sigmoid(w[{h, q_idx}]) / r.l, { lse = log(r.l) + r.m }
    end,
  },
}
