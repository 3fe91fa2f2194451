-- Squared ReLU attention, divided by the number of keys; causal.
--   p = max(s, 0)^2 / kv_len
-- FLASH (Hua et al. 2022), after Primer (So et al. 2021).
return attention {
  name = "squared_relu",
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end,
  online_func = {
    name = "squared_relu",
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local r = relu(scores)
      return r * r / kv_len
    end,
  },
}
