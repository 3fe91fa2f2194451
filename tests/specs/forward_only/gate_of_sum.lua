-- sigmoid(score) times a learned number that the sum of the row chooses: where its gradient goes is known only after the row, so forward only.
return attention {
  name = "gate_of_sum",
  block_mask = causal(),
  inputs = { gate = { axes = { 16 }, grad = true } },
  online_func = {
    name = "gate_of_sum",
    online_rowscales = { l = 0 },
    online_fwd = function(scores, rowscales)
      local p = sigmoid(scores)
      return p, { l = rowscales.l + reduce_sum(p) }, 1
    end,
    online_fwd_epilogue = function(o, rowscales)
      return o * gate[clamp(floor(rowscales.l / 4), 0, 15)] / (1 + rowscales.l)
    end,
  },
}
