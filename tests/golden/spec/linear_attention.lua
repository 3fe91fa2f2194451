-- expect: linear_attention.lua:2: 'linear_attention' is not available in a spec: it is not implemented yet; its parallel form is: return attention { block_mask = causal(), score_mod = .. (the decay), online_func = online_retention or identity }
return linear_attention { name = "gla" }
