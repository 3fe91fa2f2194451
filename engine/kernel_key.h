/* kernel_key.h: the key that identifies a kernel of an engine. */
#ifndef LUATTN_ENGINE_KERNEL_KEY_H
#define LUATTN_ENGINE_KERNEL_KEY_H

#include <stdbool.h>

#include "abi/kernel_facts.h"
#include "luattn/engine.h"

typedef struct kernel_key {
  const luattn_spec *spec;
  uint64_t spec_hash[2]; /* another spec may come to lie where a freed one has been */
  /* As in luattn_target; wants is 0 where the pass has none. */
#define TARGET_FACT(name, type, range, expected, key) OF_KEY(key, type name;)
#include "abi/kernel_facts.def"
} kernel_key;

/* Compares everything except classes: the lengths, and the rows for which a decode kernel is. */
bool kernel_key_same(const kernel_key *a, const kernel_key *b);
bool kernel_key_same_class(const kernel_key *a, const kernel_key *b);

/* Sets the members of a target that a key has. */
void kernel_key_fill_target(const kernel_key *key, luattn_target *target);
/* Likewise of a query, for a key that leaves nothing open. */
void kernel_key_fill_query(const kernel_key *key, luattn_pack_query *query);

/* What kernels of the key are for, and which argument asks for it, where packs do not hold them; else NULL. */
const char *kernel_key_unpacked(const kernel_key *key, const char **asked_by);

/* Makes it the key of the kernel for all lengths, where it was decode's. */
void kernel_key_leave_decode(kernel_key *key);

#endif
