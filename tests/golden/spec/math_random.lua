-- expect: math_random.lua:4: 'math.random' is not available in a spec: hooks are called again and again and must give the same result each time; write random(b, h, q_idx, kv_idx), which is drawn for a score
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    return score + math.random()
  end,
}
