-- A learned slope times the log of the distance, which is infinite for the token itself; a learned bonus
-- within a group.
return attention {
  name = "log_distance",
  inputs = {
    w = { axes = {"h"}, grad = true },
    u = { axes = {"h"}, grad = true },
    group = { axes = {"b", "n"}, dtype = "i32" },
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local d = abs(q_idx - kv_idx)
    if d > 0 then score = score - w[h] * log(d) end
    if eq(group[{b, q_idx}], group[{b, kv_idx}]) then score = score + u[h] end
    return score
  end,
}
