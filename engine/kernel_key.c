#include "engine/kernel_key.h"

bool kernel_key_same(const kernel_key *a, const kernel_key *b) {
  if (a->spec != b->spec || a->spec_hash[0] != b->spec_hash[0] || a->spec_hash[1] != b->spec_hash[1]) return false;
#define TARGET_FACT(name, type, range, expected, key) OF_CALL(key, if (a->name != b->name) return false;)
#include "abi/kernel_facts.def"
  return true;
}

bool kernel_key_same_class(const kernel_key *a, const kernel_key *b) {
#define TARGET_FACT(name, type, range, expected, key) OF_CLASS(key, if (a->name != b->name) return false;)
#include "abi/kernel_facts.def"
  return true;
}

void kernel_key_fill_target(const kernel_key *from, luattn_target *target) {
#define TARGET_FACT(name, type, range, expected, key) OF_KEY(key, target->name = from->name;)
#include "abi/kernel_facts.def"
}

void kernel_key_fill_query(const kernel_key *key, luattn_pack_query *query) {
  query->pass = key->pass;
  query->dtype = key->dtype;
  query->head_dim = key->head_dim;
  query->head_dim_v = key->head_dim_v;
  query->wants = key->wants;
  query->lengths = 1 + (int)key->lengths;
#define KERNEL_VARIANT(name, value, says) query->name = (int)key->name;
#define KERNEL_UNPACKED(name, value, says, asked_by, are_for)
#include "abi/kernel_facts.def"
}

const char *kernel_key_unpacked(const kernel_key *key, const char **asked_by) {
#define KERNEL_VARIANT(name, value, says)
#define KERNEL_UNPACKED(name, value, says, asks, are_for) \
  if (key->name != 0) return *asked_by = asks, are_for;
#include "abi/kernel_facts.def"
  if (key->query_tile_size != 0) return *asked_by = "query_tile_size", "boxes that a call names";
  if (key->key_tile_size != 0) return *asked_by = "key_tile_size", "boxes that a call names";
  if (key->input_types != 0) return *asked_by = "inputs", "inputs whose dtype is any";
  return NULL;
}

void kernel_key_leave_decode(kernel_key *key) {
  if (key->decode == 0) return;
  key->decode = key->many_rows = 0;
  key->lengths = LUATTN_SHORT; /* which said something about rows of decode */
}
