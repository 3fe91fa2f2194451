-- Everything whose place depends on the sequence: inputs along b, q, kv and pairs, and b itself as a number.
return attention {
  name = 'packed_pairs',
  scalars = { a = 0.5 },
  inputs = {
    t = { axes = {'b', 'h', 'q', 'kv'}, grad = true },
    u = { axes = {'q'}, grad = true },
    w = { axes = {'b', 'kv'}, grad = true },
  },
  score_mod = function(s, b, h, q, kv) return s + t[{b, h, q, kv}] + a * u[q] * w[{b, kv}] + 0.1 * b * kv end,
  block_mask = function(b, h, q, kv) return (q + b) % 3 < 2 or kv < 2 end,
}
