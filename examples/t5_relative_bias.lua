-- T5's relative position bias: a learned table over buckets of the distance, which grow logarithmically.
--   s + bias[h, bucket(kv - q)]
-- Raffel et al. 2020; bidirectional, 32 buckets, distances up to 128. T5 does not scale its scores: run it
-- with scale = 1.
local buckets, max_distance = 32, 128
local half = buckets // 2       -- for keys before the query; the other half for keys after it
local exact = half // 2         -- number of distances that have their own bucket

local function bucket(relative)
  local n = abs(relative)
  local far = log(max(n, 1) / exact) / math.log(max_distance / exact) * (half - exact)
  -- At n = 16, 32, 64 `far` is an integer; the small addend keeps rounding from selecting the bucket below.
  local large = min(exact + floor(far + 0.001), half - 1)
  return where(n < exact, n, large) + where(relative > 0, half, 0)
end

return attention {
  name = "t5_relative_bias",
  inputs = { bias = { axes = {"h", buckets}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + bias[{h, bucket(kv_idx - q_idx)}]
  end,
}
