-- expect: channels_too_many.lua:5: x[..]: the input mods read their rows at more than 8 channels, each way through a comparison counting apart; compute the channel without branches, as in x[(d + n) % (2 * n)]
return attention {
  query_mod = function(x, b, h, pos, d)
    local sum = x
    for i = 1, 9 do sum = sum + x[(d + i) % head_dim] end
    return sum
  end,
}
