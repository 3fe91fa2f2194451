/* tile_table_test.c: packed sequences whose tiles kernels take from a list (luattn_tile_table), on the PTX machine.
 * Forty sequences, most of them short, some empty, one long. Forward and deterministic backward run with a list that
 * each launch makes, and with one that a batch holds for both: O is compared with plain loops, and gradients of both
 * have the same bits. The batch's list must have every tile of every sequence once, the longest sequence first; of
 * keys, it says which sequences come last. Again with equal sequences. Gradients are also compared with the sm80
 * family's. Then what luattn_batch_prepare_tiles refuses, and lists of other calls and of lengths that have changed.
 *
 * tile_table_test sm90 bf16
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/params.h"
#include "abi/workspace.h"
#include "tests/ptx/arrays.h"

enum { BATCH = 40, HEADS = 2, HEADS_KV = 1, DIM = 64 };
enum { Q, K, V, O, DOUT, DQ, DK, DV, TENSORS };

typedef struct problem {
  int cu[2][BATCH + 1];
  int longest[2];
  array of[TENSORS], lse, cu_q, cu_k;
} problem;

static int length_of(const problem *x, int side, int b) { return x->cu[side][b + 1] - x->cu[side][b]; }

/* equal: 9 sequences of 70 queries and 140 keys; the others are empty. */
static void draw_problem(problem *x, kind k, bool equal) {
  for (int side = 0; side < 2; ++side) {
    x->cu[side][0] = x->longest[side] = 0;
    for (int b = 0; b < BATCH; ++b) {
      const int mixed = b == 17             ? 300 - 50 * side
                        : b % 7 == 3 + side ? 0
                                            : 1 + (b * 37 + side * 11) % 23,
                n = !equal                 ? mixed
                    : b % 4 == 0 && b < 36 ? 70 + 70 * side
                                           : 0;
      x->cu[side][b + 1] = x->cu[side][b] + n;
      if (n > x->longest[side]) x->longest[side] = n;
    }
  }
  for (int i = 0; i < TENSORS; ++i) {
    const int side = i == K || i == V || i == DK || i == DV;
    make(&x->of[i], k, 3, (int64_t[]){x->cu[side][BATCH], side ? HEADS_KV : HEADS, DIM});
    for (size_t j = 0; j < x->of[i].count; ++j) put(k, x->of[i].host, j, i >= DQ || i == O ? NAN : drawn());
    send(&x->of[i]);
  }
  make(&x->lse, F32, 2, (int64_t[]){HEADS, x->cu[0][BATCH]});
  send(&x->lse);
  array *const cu[] = {&x->cu_q, &x->cu_k};
  for (int side = 0; side < 2; ++side) {
    make(cu[side], I32, 1, (int64_t[]){BATCH + 1});
    memcpy(cu[side]->host, x->cu[side], sizeof x->cu[side]);
    send(cu[side]);
  }
}
static void drop_problem(problem *x) {
  for (int i = 0; i < TENSORS; ++i) drop(&x->of[i]);
  drop(&x->lse), drop(&x->cu_q), drop(&x->cu_k);
}

/* ---- O by plain loops ---- */

static double element(const array *a, int row, int head, int d) {
  return get(a->k, a->host, ((size_t)row * (size_t)a->shape[1] + (size_t)head) * DIM + (size_t)d);
}

/* O of one row: query i of sequence b sees the keys up to i + kv_len - q_len. */
static void plain_row(const problem *x, int b, int h, int i, double o[DIM]) {
  const int q = x->cu[0][b] + i, first = x->cu[1][b], h_kv = h / (HEADS / HEADS_KV);
  const int end = i + length_of(x, 1, b) - length_of(x, 0, b) + 1;
  double total = 0;
  for (int d = 0; d < DIM; ++d) o[d] = 0;
  for (int j = 0; j < end; ++j) {
    double s = 0;
    for (int d = 0; d < DIM; ++d) s += element(&x->of[Q], q, h, d) * element(&x->of[K], first + j, h_kv, d);
    const double p = exp(s / sqrt(DIM));
    total += p;
    for (int d = 0; d < DIM; ++d) o[d] += p * element(&x->of[V], first + j, h_kv, d);
  }
  for (int d = 0; d < DIM && total > 0; ++d) o[d] /= total;
}

static int check_o(problem *x, const char *what) {
  int wrong = 0;
  fetch(&x->of[O]);
  for (int b = 0; b < BATCH; ++b)
    for (int i = 0; i < length_of(x, 0, b); ++i)
      for (int h = 0; h < HEADS; ++h) {
        double o[DIM];
        plain_row(x, b, h, i, o);
        for (int d = 0; d < DIM; ++d) {
          const double got = element(&x->of[O], x->cu[0][b] + i, h, d);
          if (fabs(got - o[d]) <= 4 * kind_unit[x->of[O].k]) continue;
          if (wrong++ == 0)
            fprintf(stderr, "FAILED: %s: O of sequence %d, query %d, head %d: is %g, expected %g\n", what, b, i, h, got,
                    o[d]);
        }
      }
  return wrong;
}

/* ---- the list ---- */

static const LuattnPackedTile *set_of(const problem *x, const array *list, int side, int slot) {
  size_t first = 0;
  for (int s = 0; s < 2; ++s)
    for (int i = 0; i < LUATTN_TABLE_SIZES && (s < side || i < slot || s == side); ++i) {
      if (s == side && i == slot) return (const LuattnPackedTile *)list->host + first;
      first += 1 + (size_t)workspace_table_tiles(x->cu[s][BATCH], BATCH, workspace_table_size(i));
    }
  return NULL;
}

/* The length that decides in which order sequences come: of the other side, along which a tile is walked. */
static int check_set(const problem *x, const array *list, int side, int slot) {
  const LuattnPackedTile *set = set_of(x, list, side, slot);
  const int size = workspace_table_size(slot);
  int wrong = 0, at = 1;
  for (int n = 0; n < BATCH && at <= (int)set[0].count;) {
    const int b = (int)set[at].entry, count = (length_of(x, side, b) + size - 1) / size;
    for (int i = 0; i < count; ++i, ++at)
      wrong += (int)set[at].entry != b || (int)set[at].count != count ||
               (int)set[at].tile != (side == 0 ? count - 1 - i : i);
    const bool more = at <= (int)set[0].count;
    wrong += more && length_of(x, 1 - side, (int)set[at].entry) > length_of(x, 1 - side, b);
    wrong += count == 0;
    n += count > 0;
    if (count == 0) break;
  }
  int all = 0, of_entry[BATCH] = {0};
  for (int b = 0; b < BATCH; ++b) all += (length_of(x, side, b) + size - 1) / size;
  wrong += all != (int)set[0].count;
  for (int i = 1; i <= (int)set[0].count; ++i) ++of_entry[set[i].entry];
  for (int b = 0; b < BATCH; ++b) wrong += of_entry[b] != (length_of(x, side, b) + size - 1) / size;
  if (wrong > 0)
    fprintf(stderr, "FAILED: the list of tiles of %d %s: %d wrong\n", size, side ? "keys" : "queries", wrong);
  return wrong;
}

/* The head of a set of keys, from the lengths: which sequences come last, and in which order their tiles do. */
static int check_head(const problem *x, const array *list, int slot) {
  const LuattnPackedTile *set = set_of(x, list, 1, slot);
  const LuattnPackedHead *head = (const LuattnPackedHead *)set;
  luattn_device_info device;
  need(luattn_device_get_info(driver, 0, &device, &err) == LUATTN_OK, "device");
  const int at_end = 1 + 2 * device.multiprocessors / HEADS_KV;
  int last = 0, at = (int)set[0].count;
  bool equal = true;
  while (at > 0 && last < at_end) { /* sequence by sequence, from the last one */
    equal = equal && set[at].count == set[set[0].count].count;
    last += (int)set[at].count, at -= (int)set[at].count;
  }
  const unsigned columns = set[at + 1].count, rows = equal ? (unsigned)last / columns : 1;
  if (head->count == set[0].count && head->last == (unsigned)last && head->rows == rows &&
      (rows == 1 || head->columns == columns))
    return 0;
  fprintf(stderr, "FAILED: the list of %d keys: last %u, rows %u, columns %u; expected %d, %u, %u\n",
          workspace_table_size(slot), head->last, head->rows, head->columns, last, rows, columns);
  return 1;
}

/* ---- calls ---- */

static luattn_args args_of(const problem *x, const luattn_batch *batch) {
  return (luattn_args){.struct_size = sizeof(luattn_args),
                       .q = &x->of[Q].t,
                       .k = &x->of[K].t,
                       .v = &x->of[V].t,
                       .o = &x->of[O].t,
                       .lse = &x->lse.t,
                       .dout = &x->of[DOUT].t,
                       .dq = &x->of[DQ].t,
                       .dk = &x->of[DK].t,
                       .dv = &x->of[DV].t,
                       .batch = batch};
}

/* Runs a pass; returns the bytes of its workspace. */
static size_t run(luattn_engine *engine, luattn_spec *spec, luattn_pass pass, luattn_args args) {
  array workspace;
  size_t size;
  need(luattn_engine_workspace_size(engine, spec, pass, &args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  fill(&workspace, NAN);
  args.workspace = workspace.device, args.workspace_size = size;
  need((pass == LUATTN_FORWARD ? luattn_forward : luattn_backward)(engine, spec, &args, NULL, &err) == LUATTN_OK,
       "launch");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
  return size;
}

static int refused(luattn_status status, const char *part) {
  if (status == LUATTN_INVALID && strstr(err.message, part) != NULL) return 0;
  fprintf(stderr, "FAILED: expected '%s', got %d '%s'\n", part, (int)status, err.message);
  return 1;
}

/* Makes the batch's list, after calls with which that does not go. */
static int prepare(luattn_engine *engine, luattn_spec *spec, problem *x, luattn_batch *batch, array *list) {
  const luattn_args args = args_of(x, batch);
  const luattn_kernel *kernel;
  size_t size;
  int failed = 0;
  need(luattn_engine_kernel(engine, spec, LUATTN_FORWARD, &args, &kernel, &err) == LUATTN_OK, "kernel");
  need(luattn_batch_tiles_size(kernel, &args, &size, &err) == LUATTN_OK && size > 0, "size of the list");
  make(list, I32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  failed += refused(luattn_batch_prepare_tiles(batch, kernel, &args, list->device, size - 16, NULL, &err),
                    "luattn_batch_tiles_size gives the size");
  failed += refused(luattn_batch_prepare_tiles(batch, kernel, &args, NULL, size, NULL, &err), "bytes at NULL");
  failed += refused(luattn_batch_prepare_tiles(batch, kernel, &args, (char *)list->device + 16, size, NULL, &err),
                    "256 bytes; align it");
  need(luattn_batch_prepare_tiles(batch, kernel, &args, list->device, size, NULL, &err) == LUATTN_OK,
       "making the list");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(list);
  return failed;
}

static void *copy_of(array *a, size_t *bytes) {
  fetch(a);
  *bytes = a->count * (a->k == F64 ? 8 : a->k == F32 || a->k == I32 ? 4 : 2);
  return memcpy(malloc(*bytes), a->host, *bytes);
}

/* A call with more rows than the list was made for; and LUATTN_CHECK=1, when lengths have changed. */
static int check_stale(luattn_engine *engine, luattn_spec *spec, problem *x, luattn_batch *batch) {
  luattn_args args = args_of(x, batch);
  size_t size;
  int failed = 0;
  x->of[K].shape[0] -= 1, x->of[V].shape[0] -= 1;
  failed += refused(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &size, &err),
                    "packed tiles were made for another call: k had");
  x->of[K].shape[0] += 1, x->of[V].shape[0] += 1;
  array workspace;
  need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  args.workspace = workspace.device, args.workspace_size = size;
  setenv("LUATTN_CHECK", "1", 1);
  need(luattn_forward(engine, spec, &args, NULL, &err) == LUATTN_OK, "a list of these lengths");
  int *const cu = x->cu_q.host, last = (int)x->cu_q.shape[0] - 1;
  int moved = 1; /* rows from one sequence to the next, of which none becomes too long */
  while (moved < last && (cu[moved] - cu[moved - 1] < 65 || cu[moved + 1] - cu[moved] + 65 > x->longest[0])) ++moved;
  need(moved < last, "a sequence that may lose rows");
  cu[moved] -= 65, send(&x->cu_q);
  failed +=
      refused(luattn_forward(engine, spec, &args, NULL, &err), "have changed, call luattn_batch_prepare_tiles again");
  cu[moved] += 65, send(&x->cu_q);
  unsetenv("LUATTN_CHECK");
  drop(&workspace);
  return failed;
}

/* Compares gradients with those of another family, which takes tiles in another order. */
static int check_gradients(luattn_engine *other, luattn_spec *spec, problem *x, const luattn_batch *batch,
                           void *const want[3]) {
  int failed = 0;
  for (int i = 0; i < 3; ++i) fill(&x->of[DQ + i], NAN);
  run(other, spec, LUATTN_BACKWARD, args_of(x, batch));
  for (int i = 0; i < 3; ++i) {
    array *g = &x->of[DQ + i];
    double most = 0, off = 0;
    fetch(g);
    for (size_t j = 0; j < g->count; ++j) {
      const double a = get(g->k, want[i], j), b = get(g->k, g->host, j);
      most = fmax(most, fabs(b)), off = isnan(a - b) ? INFINITY : fmax(off, fabs(a - b));
    }
    if (off <= 8 * kind_unit[g->k] * most) continue; /* P and dS are rounded to the type in both */
    fprintf(stderr, "FAILED: gradient %d is off by %g of %g\n", i, off, most), ++failed;
  }
  return failed;
}

/* Both passes with the launch's own lists and with the batch's. */
static int check(luattn_engine *engine, luattn_engine *other, luattn_spec *spec, kind k, bool equal) {
  problem x;
  array list;
  draw_problem(&x, k, equal);
  const luattn_batch_options options = {.struct_size = sizeof options,
                                        .cu_seqlens_q = &x.cu_q.t,
                                        .cu_seqlens_k = &x.cu_k.t,
                                        .max_seqlen_q = x.longest[0],
                                        .max_seqlen_k = x.longest[1]};
  luattn_batch *batch;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  const size_t own = run(engine, spec, LUATTN_FORWARD, args_of(&x, batch));
  int failed = check_o(&x, "a list of the launch");
  run(engine, spec, LUATTN_BACKWARD, args_of(&x, batch));
  void *before[3];
  size_t bytes[3];
  for (int i = 0; i < 3; ++i) before[i] = copy_of(&x.of[DQ + i], &bytes[i]);
  failed += check_gradients(other, spec, &x, batch, before);
  failed += prepare(engine, spec, &x, batch, &list);
  for (int side = 0; side < 2; ++side)
    for (int slot = 0; slot < LUATTN_TABLE_SIZES; ++slot) {
      failed += check_set(&x, &list, side, slot);
      if (side == 1) failed += check_head(&x, &list, slot);
    }
  fill(&x.of[O], NAN);
  if (run(engine, spec, LUATTN_FORWARD, args_of(&x, batch)) >= own && is_small_device()) {
    fprintf(stderr, "FAILED: forward needs as much workspace as without the batch's list\n");
    ++failed;
  }
  failed += check_o(&x, "a list of the batch");
  for (int i = 0; i < 3; ++i) fill(&x.of[DQ + i], NAN);
  run(engine, spec, LUATTN_BACKWARD, args_of(&x, batch));
  for (int i = 0; i < 3; ++i) {
    size_t now;
    void *after = copy_of(&x.of[DQ + i], &now);
    if (memcmp(before[i], after, now) != 0)
      fprintf(stderr, "FAILED: gradient %d differs with the batch's list\n", i), ++failed;
    free(before[i]), free(after);
  }
  failed += check_stale(engine, spec, &x, batch);
  luattn_batch_close(batch);
  drop(&list);
  drop_problem(&x);
  return failed;
}

int main(int argc, char **argv) {
  int k = 0;
  while (argc > 2 && k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (argc != 3 || strcmp(argv[1], "sm90") != 0 || k == 4) return 2;
  const luattn_engine_options options = {.struct_size = sizeof options, .family = 1 + LUATTN_SM90, .deterministic = 1},
                              of_other = {.struct_size = sizeof options, .family = 1 + LUATTN_SM80};
  luattn_engine *engine, *other;
  luattn_spec *spec;
  const char *text = "return attention { block_mask = causal_bottom_right() }";
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK &&
           luattn_engine_open(&of_other, &other, &err) == LUATTN_OK,
       "engine");
  driver = luattn_engine_driver(engine);
  need(luattn_spec_load_text("packed", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "spec");
  const int failed = check(engine, other, spec, (kind)k, false) + check(engine, other, spec, (kind)k, true);
  luattn_engine_close(engine), luattn_engine_close(other);
  luattn_spec_free(spec);
  return failed != 0;
}
