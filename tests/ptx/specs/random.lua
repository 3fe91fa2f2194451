-- Gumbel noise, keys dropped before the softmax, and noise of q
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score - log(-log1p(-max(random(b, h, q_idx, kv_idx), 2.0 ^ -25)))
  end,
  block_mask = function(b, h, q_idx, kv_idx) return random(b, h, 0, kv_idx) < 0.8 end,
  query_mod = function(x, b, h, pos, d) return x + 0.1 * random(b, h, pos, d) end,
}
