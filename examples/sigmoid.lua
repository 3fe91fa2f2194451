-- Sigmoid attention with a learned bias for each head: no normaliser, each p depends on its own score only.
--   p = sigmoid(s + bias[h]),   O = sum p v
-- Ramapuram et al. 2024. Start the bias at -log(kv_len).
return attention {
  name = "sigmoid",
  inputs = { bias = { axes = {"h"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + bias[h] end,
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end,
  online_func = {
    name = "sigmoid",
    online_fwd = function(scores, rowscales, b, h, q_idx) return sigmoid(scores) end,
  },
}
