-- P with a kink at 0, and a backward written by hand. Differences across the kink are meaningless.
return attention {
  name = "own_backward_bends",
  score_mod = function(score) return 3 * score end,
  online_func = {
    name = "own_backward_bends",
    online_fwd = function(scores) return relu(scores) end,
    backward = function(dp, p, final_rowscales, doosum, b, h, q_idx, kv_idx, scores)
      return where(scores > 0, dp, 0)
    end,
  },
}
