-- Full attention: every query sees every key.
--   O = softmax(scale * Q K^T) V
-- Vaswani et al. 2017, "Attention is all you need". Softmax is the default online function.
return attention { name = "full" }
