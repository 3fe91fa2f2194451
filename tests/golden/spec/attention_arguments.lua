-- expect: attention_arguments.lua:2: attention: takes one table: attention { name = .., score_mod = .. }
return attention(1, 2)
