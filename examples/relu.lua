-- ReLU attention, divided by the number of keys.
--   p = max(s, 0) / kv_len
-- Wortsman et al. 2023, "Replacing softmax with ReLU in vision transformers".
return attention {
  name = "relu",
  online_func = {
    name = "relu",
    online_fwd = function(scores, rowscales, b, h, q_idx) return relu(scores) / kv_len end,
  },
}
