-- Rows whose scores are all -inf because of a row term: nothing is masked, but every P is 0.
return attention {
  inputs = { m = { axes = {"q"} } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + log(relu(m[q_idx])) end,
}
