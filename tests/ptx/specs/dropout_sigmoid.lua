return attention { name = "dropout_sigmoid", block_mask = causal(), online_func = dropout(0.1, sigmoid_attention) }
