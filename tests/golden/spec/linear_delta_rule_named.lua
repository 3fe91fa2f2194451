-- expect: linear_delta_rule_named.lua:5: delta_rule: the strength is 'beta'; give a function
return linear_attention {
  name   = "delta",
  inputs = { beta = { axes = {"b", "t", "hv"} } },
  update = delta_rule("beta"),
}
