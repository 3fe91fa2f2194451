/* kernel_choice.c: chooses between the kernel for few queries and the one for all lengths, and says why. */
#include <stdio.h>

#include "common/call/batch.h"
#include "common/call/kernel_time.h"
#include "engine/engine.h"

/* A deterministic engine's choice, and so an entry's bits, must not depend on how many others there are. */
enum { DETERMINISTIC_ENTRIES = 16, CHOICE_PLACES = 32 /* LUATTN_SPLIT_PLACES */ };

/* The rows of a kv head, queries times its query heads, of the longest entry. */
static double rows_of(const luattn_args *a) {
  const double queries = batch_is_packed(a->batch) ? (double)a->batch->lengths[0].longest : (double)a->q->shape[2];
  return queries * (double)a->q->shape[1] / (double)a->k->shape[1];
}

static bool has_axes(const luattn_args *a) {
  const int ndim = batch_is_paged(a->batch) ? 4 : a->q->ndim;
  return a->k != NULL && a->k->ndim == ndim && a->k->shape != NULL && a->k->shape[1] >= 1 && a->q->shape[1] >= 1;
}

bool choice_has_more_rows(const luattn_args *args, int64_t most) {
  const DLTensor *k = args->k;
  if (k == NULL || k->ndim < 2 || k->shape == NULL || k->shape[1] < 1) return true;
  return rows_of(args) > (double)most;
}

/* Shapes that a launch refuses may be anything. */
static forward_sizes sizes_of(const engine_place *at, const luattn_args *a) {
  const luattn_batch *batch = a->batch;
  const bool packed = batch_is_packed(batch), paged = batch_is_paged(batch);
  const DLTensor *q = a->q, *k = a->k, *v = a->v;
  forward_sizes s = {.heads = q->shape[1],
                     .heads_kv = k->shape[1],
                     .head_dim = (int)q->shape[q->ndim - 1],
                     .head_dim_v = (int)v->shape[v->ndim - 1],
                     .multiprocessors = at->multiprocessors > 0 ? at->multiprocessors : 1};
  s.entries = packed ? (double)(batch->array[BATCH_CU_SEQLENS_Q].count - 1) : (double)q->shape[0];
  s.queries = packed ? (double)batch->lengths[0].longest : (double)q->shape[2];
  s.all_queries = packed ? (double)q->shape[0] : s.queries * s.entries;
  s.longest = paged    ? (double)batch_longest_paged(batch, k->shape[2])
              : packed ? (double)batch->lengths[1].longest
                       : (double)k->shape[2];
  s.keys = packed && !paged && s.entries > 0 ? (double)k->shape[0] / s.entries : s.longest;
  if (s.keys > s.longest) s.keys = s.longest;
  if (at->deterministic) {
    s.entries = DETERMINISTIC_ENTRIES, s.keys = s.longest;
    s.all_queries = s.queries * s.entries;
  }
  return s;
}

int choice_of_decode(const engine_place *at, luattn_pass pass, const luattn_args *args) {
  if (pass != LUATTN_FORWARD || at->driver == NULL || args->decode == LUATTN_DECODE_NEVER) return 0;
  if (args->decode != LUATTN_DECODE_AUTO) return 1;
  if (args->q->dtype.bits != 16 || at->names_family || !has_axes(args)) return 0;
  if (batch_has_chunks(args->batch)) return 0;                          /* decode has no chunks yet */
  if (args->query_tile_size != 0 || args->key_tile_size != 0) return 0; /* they are of the kernels for many queries */
  const forward_sizes sizes = sizes_of(at, args);
  return kernel_takes_decode(&sizes) ? 2 : 0;
}

/* What a luattn_batch would change (runtime/parts/split_list.h). */
static const char *batch_means(const luattn_args *a, bool takes_decode, const forward_sizes *sizes) {
  if (!takes_decode || !(batch_is_packed(a->batch) || batch_is_paged(a->batch))) return "";
  if (a->batch->splits.memory != NULL) return "; its batch has a list of blocks by length";
  if (sizes->entries <= CHOICE_PLACES)
    return "; blocks share the keys by their entries' lengths, unless the call is short, so a batch's list gains "
           "little";
  return "; every entry has as many blocks, unless the call is long: a list of blocks by length in its batch pays "
         "where "
         "lengths differ";
}

void choice_explain(const engine_place *at, luattn_pass pass, const luattn_args *args, bool takes_decode, char *text,
                    size_t size) {
  text[0] = 0;
  if (pass != LUATTN_FORWARD || at->driver == NULL || args->q->dtype.bits != 16 || !has_axes(args)) return;
  const forward_sizes sizes = sizes_of(at, args);
  const kernel_times t = kernel_times_of(&sizes);
  const char *by = args->decode == LUATTN_DECODE_ALWAYS          ? "as decode asks for it"
                   : args->decode == LUATTN_DECODE_NEVER         ? "as decode forbids the other"
                   : at->names_family                            ? "as the engine's family says"
                   : takes_decode == kernel_takes_decode(&sizes) ? "as the faster one"
                                                                 : "as there is no decode kernel of it";
  snprintf(text, size,
           "choice: the kernel for %s, %s: predicted %.0f us by the decode kernel (%.0f tiles of %d rows, %d splits), "
           "%.0f by the one for all lengths, of %.0f entries of up to %.0f keys on %d multiprocessors%s\n",
           takes_decode ? "few queries" : "all lengths", by, t.decode, t.as_decode.tiles, t.as_decode.tile_m, t.splits,
           t.general, sizes.entries, sizes.longest, sizes.multiprocessors, batch_means(args, takes_decode, &sizes));
}
