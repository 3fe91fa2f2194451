/* mask_chunks.c: counts tiles by chunk, for plans of context parallelism. */
#include <stdlib.h>

#include "common/call/need_attention.h"
#include "common/call/choices.h"
#include "gen/cpu/mask_survey.h"

enum { TILE = 128 }; /* LUATTN_PARALLEL_TILE */

/* Over a grid chunks have places in their row-major order. */
static luattn_status chunks_of(const luattn_spec *spec, const DLTensor *t, const char *name, int rows, int64_t *chunks,
                               luattn_error *err) {
  const int axes = spec->traced.grid_axes > 1 ? spec->traced.grid_axes : 1;
  int64_t places = 1;
  if (t == NULL || t->shape == NULL || t->ndim != 3 + axes)
    return luattn_fail(err, LUATTN_INVALID,
                       "mask: %s: is missing, or has not %d axes; give a tensor of the whole sequence's shape", name,
                       3 + axes);
  for (int a = 0; a < axes && places <= INT32_MAX; a++) places *= t->shape[2 + a] > 0 ? t->shape[2 + a] : 0;
  if (places > INT32_MAX)
    return luattn_fail(err, LUATTN_INVALID, "mask: %s: has more than %d places; give fewer", name, INT32_MAX);
  *chunks = places > 0 ? (places - 1) / rows + 1 : 0;
  return LUATTN_OK;
}

luattn_status luattn_mask_chunks(const luattn_spec *spec, const luattn_args *args, int chunk_rows, float *out,
                                 luattn_error *err) {
  luattn_args used;
  int64_t rows = 0, columns = 0;
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(out);
  TRY(choices_take_dense(args, "mask", &used, err));
  if (chunk_rows < TILE || chunk_rows % TILE != 0)
    return luattn_fail(err, LUATTN_INVALID, "mask: chunk_rows: is %d, expected a multiple of %d", chunk_rows, TILE);
  TRY(chunks_of(spec, used.q, "q", chunk_rows, &rows, err));
  TRY(chunks_of(spec, used.k, "k", chunk_rows, &columns, err));
  double *tiles = calloc((size_t)(rows * columns) + 1, sizeof *tiles);
  if (tiles == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "mask: out of memory");
  mask_survey_call call = {.spec = spec,
                           .args = &used,
                           .evaluates = used.skip != LUATTN_SKIP_NEVER,
                           .tile_m = TILE,
                           .tile_n = TILE,
                           .chunks = tiles,
                           .chunk_tiles = chunk_rows / TILE};
  const luattn_status status = host_run(mask_survey_run, &call, err);
  for (int64_t i = 0; status == LUATTN_OK && i < rows * columns; i++) out[i] = (float)tiles[i];
  free(tiles);
  return status;
}
