-- sigmoid(score) over a power of its sum, of which a row keeps sum / (1 + sum): backward sums it again, by a row pass.
local function sum_of(rowscales) return rowscales.share / (1 - rowscales.share) end

return attention {
  name = "hidden_sum",
  block_mask = causal(),
  online_func = {
    name = "hidden_sum",
    online_rowscales = { share = 0 },
    online_fwd = function(scores, rowscales)
      local p = sigmoid(scores)
      local sum = sum_of(rowscales) + reduce_sum(p)
      return p, { share = sum / (1 + sum) }, 1
    end,
    online_fwd_epilogue = function(o, rowscales)
      return o / (2 + sum_of(rowscales)) ^ 2
    end,
  },
}
