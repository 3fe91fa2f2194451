return attention { name = "dropout_softcap", score_mod = softcap(50), online_func = dropout(0.1) }
