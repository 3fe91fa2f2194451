-- Bias rows whose index comes from a gather, per query and batch entry.
--   s + t[idx[b, q], kv]
return attention {
  name = "gathered_line",
  inputs = { idx = { axes = {"b", "q"}, dtype = "i32" }, t = { axes = {"n", "kv"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx) return score + t[{idx[{b, q_idx}], kv_idx}] end,
}
