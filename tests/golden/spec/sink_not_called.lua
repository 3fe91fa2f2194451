-- expect: sink_not_called.lua:2: attention: online_func is a function; call it where it is declared, as in attention_sink("logits"), or give a table with online_fwd
return attention { online_func = attention_sink }
