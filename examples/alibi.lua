-- ALiBi: a penalty that is linear in the distance, with a slope for each head.
--   s - 2^(-8 (h + 1) / heads) * |q + kv_len - q_len - kv|,   causal
-- Press et al. 2022. This is FlashAttention's form, bottom-right aligned; lse includes the full bias.
return attention {
  name = "alibi",
  score_mod = function(score, b, h, q_idx, kv_idx)
    local slope = exp2(-8 * (h + 1) / heads)
    return score - slope * abs(q_idx + kv_len - q_len - kv_idx)
  end,
  block_mask = causal_bottom_right(),
}
