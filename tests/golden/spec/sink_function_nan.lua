-- expect: sink_function_nan.lua:2: attention_sink: logit, which the function returned, is nan; give a finite number
return attention { online_func = attention_sink(function(b, h) return 0 / 0 end) }
