-- expect: hook_parameters_of_q.lua:3: online_func: online_fwd: parameter 2 of the function is 'b', but the hook is called with (scores, rowscales, b, h, q_idx); only parameters at the end may be left out
return attention { online_func = {
  online_fwd = function(scores, b) return sigmoid(scores) + b end,
} }
