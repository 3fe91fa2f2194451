-- Whole rows of -inf by a term of the row: nothing is masked, and yet no key has weight.
return attention {
  inputs = { m = { axes = {"q"} } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + log(relu(m[q_idx])) end,
}
