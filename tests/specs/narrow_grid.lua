-- A grid with rows of 10 and one interval in each, for a P that a score of -inf does not mask.
return attention {
  name = "narrow_grid",
  block_mask = function(b, h, q_idx, kv_idx)
    return abs(q_idx // 10 - kv_idx // 10) <= 4 and abs(q_idx % 10 - kv_idx % 10) <= 2
  end,
  online_func = {
    name = "squares",
    online_fwd = function(scores, rowscales, b, h, q_idx) return scores * scores + 0.5 end,
  },
}
