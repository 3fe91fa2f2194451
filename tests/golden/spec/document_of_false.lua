-- expect: document_of_false.lua:2: document: ids_kv is false; give the name of an input
return attention { block_mask = document("ids", false) }
