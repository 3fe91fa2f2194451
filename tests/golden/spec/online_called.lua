-- expect: online_called.lua:2: online_softmax is an online function itself, and is not called; write online_func = online_softmax
return attention { online_func = online_softmax() }
