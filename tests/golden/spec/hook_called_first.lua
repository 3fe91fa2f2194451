-- expect: hook_called_first.lua:5: score_mod: gives another result when it is called again; a hook must not keep anything between calls, nor go by the order of pairs, so use its arguments, inputs, scalars and locals
local first = true
return attention {
  name = "first",
  score_mod = function(score, b, h, q_idx, kv_idx)
    if first then
      first = false
      return score * 2
    end
    return score
  end,
}
