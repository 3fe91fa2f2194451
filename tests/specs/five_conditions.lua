-- A score mod whose five conditions are independent: 32 replays.
return attention {
  inputs = { t = { axes = {"n"}, grad = true } },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local x = score
    for i = 1, 5 do
      if (q_idx + i) % 3 < 1 + kv_idx % (i + 1) then
        x = x + t[i] * score
      else
        x = x - t[i + 1]
      end
    end
    return x
  end,
}
