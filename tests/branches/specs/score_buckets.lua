-- Learned biases indexed by the score: by the bucket of q.k, and by the bucket of the modified score.
return attention {
  name = "score_buckets",
  inputs = { before = { axes = {8}, grad = true }, after = { axes = {8}, grad = true } },
  score_mod = function(score) return score + before[clamp(floor(2 * score), -4, 3) + 4] end,
  online_func = {
    online_rowscales = { l = 0 },
    online_fwd = function(scores, rowscales)
      local y = sigmoid(scores) * (2 + tanh(after[clamp(floor(3 * scores), -4, 3) + 4]))
      return y, { l = rowscales.l + reduce_sum(y) }, 1
    end,
    online_fwd_epilogue = function(o, rowscales) return o / (1 + rowscales.l), {} end,
  },
}
