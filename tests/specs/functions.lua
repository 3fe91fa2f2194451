-- Each function of one number, in score and gradient: of scores, of a scalar and of what a bias reads.
return attention {
  scalars = { a = 0.4 },
  inputs = { bias = { axes = { "h", "kv" }, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local x = a * score
    local near = expm1(x) + log1p(abs(x)) + tanh(x) + sigmoid(x) + erf(x) + sin(x) + cos(x)
    local bent = softplus(x) + gelu(x) + silu(x) + relu(x)
    local y = bias[{h, kv_idx}]
    local root = 1 + y * y
    return score + 0.2 * near + 0.1 * bent + expm1(-abs(y)) + exp2(-root) + log2(root) * rsqrt(root) + sqrt(root) - exp(-root)
  end,
}
