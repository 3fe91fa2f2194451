-- A learned attention sink for each head, in a causal sliding window.
--   p = exp(s) / (exp(sinks[h]) + sum exp(s)),   keep  q - W < kv <= q
-- gpt-oss (OpenAI 2025), W = 128. The sink takes its share of the row and has no value. The standard
-- library has this online function as attention_sink("sinks").
local W = 128
return attention {
  name = "attention_sink",
  inputs = { sinks = { axes = {"h"}, grad = true } },
  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx and q_idx - kv_idx < W end,
  online_func = {
    name = "sink",
    online_rowscales = { m = function(b, h) return sinks[h] end, l = 0 }, -- m starts at the sink
    final_rowscales = { "lse" },
    online_fwd = function(scores, rowscales, b, h, q_idx)
      local m = max(rowscales.m, reduce_max(scores))
      local o_scale = exp(rowscales.m - m)
      local p = exp(scores - m)
      return p, { m = m, l = rowscales.l * o_scale + reduce_sum(p) }, o_scale
    end,
    online_fwd_epilogue = function(o, rowscales, b, h, q_idx)
      local l = rowscales.l + exp(sinks[h] - rowscales.m)
      return o / l, { lse = log(l) + rowscales.m }
    end,
    forward = function(scores, final_rowscales, b, h, q_idx, kv_idx)
      return exp(scores - final_rowscales.lse)
    end,
  },
}
