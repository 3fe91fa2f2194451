-- Rows that keep nothing, of which an epilogue makes an infinity, and 0 / 0 in its gradients: they add nothing to these.
return attention {
  name = "empty_rows",
  scalars = { t = -3 },
  inputs = { w = { axes = {"q"}, grad = true } },
  mask_mod = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx - 5 and q_idx < q_len - 3 end,
  online_func = {
    online_rowscales = { m = -1e37, l = 0 },
    final_rowscales = { "r" },
    online_fwd = function(scores, r, b, h, q_idx)
      local s = scores * (1 + sigmoid(w[q_idx]))
      local m = max(r.m, reduce_max(s))
      local f = exp(r.m - m)
      local p = exp(s - m)
      return p, { m = m, l = r.l * f + reduce_sum(p) }, f
    end,
    online_fwd_epilogue = function(o, r, b, h, q_idx)
      local x = min(r.l, t * (1 + sigmoid(w[q_idx])) * exp(-r.m))
      return o / x, { r = x }
    end,
  },
}
