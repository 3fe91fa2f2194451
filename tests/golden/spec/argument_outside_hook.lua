-- expect: argument_outside_hook.lua:2: undefined name 'q_idx': it is an argument of hooks, and exists only inside them
local limit = q_idx + 1
return attention {}
