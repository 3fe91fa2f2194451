-- expect: linear_delta_rule_of_input.lua:5: sigmoid: takes 1 argument, got 3
return linear_attention {
  name   = "delta",
  inputs = { beta = { axes = {"b", "t", "hv"} } },
  update = delta_rule(sigmoid),
}
