-- Numbers on the device whose gradients are sums of dS: a bias of all scores, and one slope for all heads.
return attention {
  inputs = {
    bias = { axes = {}, grad = true },
    slope = { axes = {}, dtype = "bf16", grad = true },
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + bias - 0.01 * slope * (q_idx - kv_idx)
  end,
  mask_mod = causal_bottom_right(),
  online_func = sigmoid_attention,
}
