-- Inputs of dtype `any`: each combination of tensor types has its own kernel.
return attention {
  inputs = {
    bias = { axes = {"h", "q", "kv"}, dtype = "any", grad = true },
    sink = { axes = {"h"}, dtype = "any", grad = true },
    heat = { axes = {}, dtype = "any", grad = true },
  },
  score_mod = function(score, b, h, q_idx, kv_idx) return score * exp(heat) + bias[{h, q_idx, kv_idx}] end,
  mask_mod = causal_bottom_right(),
  online_func = attention_sink("sink"),
}
