#include "engine/parallel_rows.h"

#include <inttypes.h>
#include <stdlib.h>

static luattn_status check_owners(const parallel_chunks *c, luattn_error *err) {
  for (int r = 0; r < c->ranks; ++r) {
    int own = 0;
    for (int i = 0; i < c->call->chunks; ++i) own += parallel_has(c, r, i);
    if (own != c->own)
      return luattn_fail(err, LUATTN_INVALID,
                         "luattn_parallel: rank_of: rank %d has %d chunks, and each of %d ranks has %d", r, own,
                         c->ranks, c->own);
  }
  return LUATTN_OK;
}

/* Tables, as calls ask for every chunk of every rank, of which there may be thousands. */
static void fill_tables(parallel_chunks *c) {
  const int chunks = c->call->chunks;
  const unsigned char *needs = c->call->needs;
  for (int i = 0; i < chunks; ++i) {
    unsigned char *const takes = &c->takes[(size_t)c->call->rank_of[i] * (size_t)chunks];
    for (int j = 0; j < chunks; ++j)
      takes[j] |= needs == NULL || j == i || needs[(size_t)i * (size_t)chunks + (size_t)j] != 0;
  }
  for (int i = 0, own = 0; i < chunks; ++i) {
    parallel_span *s = c->stage;
    while (parallel_distance(c, i) >= s->end) ++s;
    c->place[false][i] = own, c->place[true][i] = s->taken;
    own += parallel_has(c, c->rank, i), s->taken += parallel_takes(c, c->rank, i);
  }
}

/* One stage, or own keys, then those of 1, 1, 2, 4, .. ranks: what is on its way is never more than what has come. */
static void cut_stages(parallel_chunks *c, bool gathered) {
  const int first_end = gathered ? c->ranks : 1;
  c->stage[c->num_stages++] = (parallel_span){0, first_end, 0};
  for (int first = first_end; first < c->ranks; first = c->stage[c->num_stages - 1].end) {
    const int size = first < 2 ? 1 : first - 1, end = first + size < c->ranks ? first + size : c->ranks;
    c->stage[c->num_stages++] = (parallel_span){first, end, 0};
  }
}

luattn_status parallel_chunks_open(const luattn_parallel_call *call, bool gathered, parallel_chunks *out,
                                   luattn_error *err) {
  const int ranks = call->transport->ranks;
  const size_t chunks = (size_t)call->chunks;
  *out = (parallel_chunks){.call = call, .rank = call->transport->rank, .ranks = ranks, .own = call->chunks / ranks};
  TRY(check_owners(out, err));
  out->takes = calloc((size_t)ranks * chunks, 1);
  for (int i = 0; i < 2; ++i) out->place[i] = malloc(chunks * sizeof *out->place[i]);
  if (out->takes == NULL || out->place[0] == NULL || out->place[1] == NULL)
    return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_parallel: out of memory");
  cut_stages(out, gathered);
  fill_tables(out);
  return LUATTN_OK;
}

void parallel_chunks_close(parallel_chunks *c) {
  free(c->takes);
  for (int i = 0; i < 2; ++i) free(c->place[i]);
}

bool parallel_has(const parallel_chunks *c, int rank, int chunk) { return c->call->rank_of[chunk] == rank; }

bool parallel_takes(const parallel_chunks *c, int rank, int chunk) {
  return c->takes[(size_t)rank * (size_t)c->call->chunks + (size_t)chunk] != 0;
}

int parallel_distance(const parallel_chunks *c, int chunk) {
  return (c->call->rank_of[chunk] - c->rank + c->ranks) % c->ranks;
}

bool parallel_in_stage(const parallel_chunks *c, const parallel_span *stage, int chunk) {
  const int distance = parallel_distance(c, chunk);
  return distance >= stage->first && distance < stage->end && parallel_takes(c, c->rank, chunk);
}

int parallel_place(const parallel_chunks *c, int chunk, bool taken) { return c->place[taken][chunk]; }

luattn_status parallel_rows_of(const char *name, const DLTensor *t, parallel_rows *out, luattn_error *err) {
  const int64_t b = t->shape[0], h = t->shape[1], n = t->shape[2], d = t->shape[3], bytes = t->dtype.bits / 8;
  const int64_t dense[4] = {h * n * d, n * d, d, 1}, *s = t->strides != NULL ? t->strides : dense;
  const bool by_head = s[3] == 1 && (s[2] == d || n == 1), by_row = s[3] == 1 && (s[1] == d || h == 1) && s[2] == h * d;
  if (!by_head && !by_row)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_parallel: %s: has strides %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                       "; expected rows of a head side by side, or rows of all heads: make it contiguous in one of the "
                       "two orders",
                       name, s[0], s[1], s[2], s[3]);
  *out = (parallel_rows){.data = (char *)t->data + t->byte_offset,
                         .runs = {b, by_head ? h : 1},
                         .step = {s[0] * bytes, by_head ? s[1] * bytes : 0},
                         .row = (by_head ? d : h * d) * bytes};
  return LUATTN_OK;
}

int64_t parallel_bytes(const DLTensor *like, int64_t count, int bytes) {
  return (like->shape[0] * like->shape[1] * count * like->shape[3] * bytes + 255) / 256 * 256;
}

parallel_rows parallel_rows_in(const parallel_rows *like, const DLTensor *of, void *memory, int64_t count, int bytes) {
  parallel_rows out = *like;
  out.data = memory;
  out.row = like->row / (of->dtype.bits / 8) * bytes;
  out.step[1] = like->runs[1] > 1 || like->step[1] != 0 ? count * out.row : 0;
  out.step[0] = count * out.row * like->runs[1];
  return out;
}

DLTensor parallel_tensor(const parallel_rows *rows, const DLTensor *like, int64_t count, DLDataType type,
                         int64_t shape[4], int64_t stride[4]) {
  const int64_t bytes = type.bits / 8, heads = like->shape[1], dim = like->shape[3];
  const bool by_head = rows->step[1] != 0;
  const int64_t of[4] = {like->shape[0], heads, count, dim},
                apart[4] = {rows->step[0] / bytes, by_head ? rows->step[1] / bytes : dim, rows->row / bytes, 1};
  for (int i = 0; i < 4; ++i) shape[i] = of[i], stride[i] = apart[i];
  DLTensor t = *like;
  t.data = rows->data, t.byte_offset = 0;
  t.dtype = type, t.shape = shape, t.strides = stride;
  return t;
}

luattn_status parallel_move(const luattn_transport *t, bool sends, int peer, const parallel_rows *rows, int64_t first,
                            int64_t count, void *stream, luattn_error *err) {
  for (int64_t i = 0; i < rows->runs[0]; ++i)
    for (int64_t j = 0; j < rows->runs[1]; ++j) {
      char *at = rows->data + i * rows->step[0] + j * rows->step[1] + first * rows->row;
      const size_t bytes = (size_t)(count * rows->row);
      if (bytes == 0) continue;
      TRY(sends ? t->send(t->self, peer, at, bytes, stream, err) : t->receive(t->self, peer, at, bytes, stream, err));
    }
  return LUATTN_OK;
}

luattn_status parallel_add(const luattn_transport *t, const parallel_rows *to, int64_t to_row,
                           const parallel_rows *from, int64_t from_row, int64_t count, luattn_dtype type, void *stream,
                           luattn_error *err) {
  const int64_t bytes = type == LUATTN_F64 ? 8 : 4;
  for (int64_t i = 0; i < to->runs[0]; ++i)
    for (int64_t j = 0; j < to->runs[1]; ++j)
      TRY(t->add(t->self, to->data + i * to->step[0] + j * to->step[1] + to_row * to->row,
                 from->data + i * from->step[0] + j * from->step[1] + from_row * from->row,
                 (size_t)(count * to->row / bytes), type, stream, err));
  return LUATTN_OK;
}
