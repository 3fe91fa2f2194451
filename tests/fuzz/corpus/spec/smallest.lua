return attention { name = 's' }
