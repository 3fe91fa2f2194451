/* states_between.h: the states between tokens that a call of linear attention asks for (luattn_linear_args). */
#ifndef LUATTN_STATES_BETWEEN_H
#define LUATTN_STATES_BETWEEN_H

#include <stdbool.h>
#include <stddef.h>

#include "luattn/linear.h"

/* Tokens of a chunk: what states_every is a multiple of. */
enum { STATES_BETWEEN_CHUNK = 64 };

typedef struct states_between {
  int64_t every, count; /* of a batch entry; of packed sequences, of all */
  DLTensor rows;        /* [batch * count, heads_v, ..]; `shape` has its shape */
  int64_t shape[4];
} states_between;

/* Fills *out, which stays where it is, of a call whose intermediate_states are given, and which has so many tokens a batch
 * entry. false: `wrong` says why not. */
bool states_between_open(const luattn_linear_args *args, int64_t tokens, int64_t entries, states_between *out,
                         char *wrong, size_t size);

#endif
