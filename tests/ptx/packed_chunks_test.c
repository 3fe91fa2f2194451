/* packed_chunks_test.c: packed sequences whose rows are chunks of the whole (luattn_batch_options.q_chunks beside cu_seqlens), from
 * luattn_forward and luattn_backward to the kernels, which the PTX machine executes. The whole in one call on the CPU, without
 * chunks, says what each part has: o and lse of some queries over all keys; and of the gradients of all pairs of parts of the
 * queries and of the keys, the sums.
 *
 * packed_chunks_test FAMILY DTYPE [SPEC]: simt f32, simt f64, sm80 f16, sm90 bf16, cpu f64
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/batch.h"
#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { HEADS = 2, HEADS_KV = 1, DIM = 64, CHUNK = 256, SEQUENCES = 5, PARTS = 2, MOST_CHUNKS = 4 };

/* Where sequences begin, and how many rows they use; the second one is empty. */
static int32_t cu[2][SEQUENCES + 1] = {{0, 256, 256, 384, 640, 700}, {0, 128, 256, 640, 640, 828}},
                                 used[2][SEQUENCES] = {{256, 0, 100, 201, 60}, {128, 128, 300, 0, 188}};

/* x: its axes, one letter each: h, q, k; a digit is a free axis of 16. */
typedef struct spec_row {
  const char *name, *text, *axes;
  bool grad, no_lse;
} spec_row;

static const spec_row specs[] = {
    {"causal", "return attention { score_mod = softcap(20), block_mask = causal() }", NULL, false, false},
    {"none", "return attention { score_mod = alibi() }", NULL, false, false},
    {"window",
     "return attention { block_mask = function(b, h, q, kv) return kv <= q + 60 and q - kv < 90 + 20 * b or kv < 5 end "
     "}",
     NULL, false, false},
    {"lengths",
     "return attention { score_mod = function(s, b, h, q, kv) return s + 0.3 * (q - kv) / (q_len + kv_len) + h / heads "
     "+ 0.1 * b end,\n"
     "  block_mask = function(b, h, q, kv) return kv - kv_len <= q - q_len + 30 end }",
     NULL, false, false},
    {"buckets",
     "return attention { inputs = { x = { axes = {'h', 16}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, kv) return s + x[{h, clamp((kv - q) // 20 + 8, 0, 15)}] end }",
     "h9", true, false},
    {"rows",
     "return attention { inputs = { x = { axes = {'q'}, grad = true } }, score_mod = function(s, b, h, q, kv)\n"
     "  return s * (1 + 0.1 * x[q]) + 0.01 * q - 0.02 * kv end }",
     "q", true, false},
    {"columns",
     "return attention { inputs = { x = { axes = {'kv'}, grad = true } }, block_mask = causal_bottom_right(),\n"
     "  score_mod = function(s, b, h, q, kv) return s + 0.5 * x[kv] end }",
     "k", true, false},
    {"mods",
     "return attention { inputs = { x = { axes = {'kv'}, grad = true } }, block_mask = causal(),\n"
     "  query_mod = function(x, b, h, pos, d) return x * (1 + 0.001 * pos + 0.1 * h) end,\n"
     "  key_mod = function(y, b, h, pos, d) return y * x[pos] end,\n"
     "  value_mod = function(y, b, h, pos, d) return y + 0.01 * pos + 0.1 * h end }",
     "k", true, false},
    {"random",
     "return attention { score_mod = function(s, b, h, q, kv) return s + 2 * random(b, h, q, kv) end,\n"
     "  block_mask = function(b, h, q, kv) return kv <= q and random(b, h, q // 3, kv // 5) < 0.7 end }",
     NULL, false, false},
    {"dropout", "return attention { online_func = dropout(0.3), block_mask = causal() }", NULL, false, false},
    {"sigmoid", "return attention { online_func = sigmoid_attention, block_mask = causal() }", NULL, false, true},
};
enum { NUM_SPECS = sizeof specs / sizeof *specs };

/* ---- chunks ---- */

/* The chunks of a call's side. */
typedef struct side {
  int count, chunk[MOST_CHUNKS];
} side;
static const side parts[2][PARTS] = {{{2, {0, 2}}, {1, {1}}}, {{2, {0, 2}}, {2, {1, 3}}}}, all_keys = {4, {0, 1, 2, 3}};

static int total(int of) { return cu[of][SEQUENCES]; }
static int rows_of(const side *s, int of) {
  const int last = total(of) - s->chunk[s->count - 1] * CHUNK;
  return (s->count - 1) * CHUNK + (last < CHUNK ? last : CHUNK);
}
static int position(const side *s, int row) { return s->chunk[row / CHUNK] * CHUNK + row % CHUNK; }

/* ---- arrays of the whole, and of a call ---- */

enum { Q, K, V, DOUT, O, LSE, DQ, DK, DV, X, DX, ARRAYS };
static const char *const names[ARRAYS] = {[O] = "o", [LSE] = "lse", [DQ] = "dq", [DK] = "dk", [DV] = "dv", [DX] = "dx"};
static const char *const axes[ARRAYS] = {[Q] = "qhd",  [K] = "kgd",  [V] = "kgd",  [DOUT] = "qhd", [O] = "qhd",
                                         [LSE] = "hq", [DQ] = "qhd", [DK] = "kgd", [DV] = "kgd"};

static const char *axes_of(const spec_row *row, int i) { return i < X ? axes[i] : row->axes != NULL ? row->axes : "1"; }

/* sides NULL: of the whole. */
static int64_t size_of_axis(char axis, const side *const sides[2]) {
  const int of = axis == 'k';
  switch (axis) {
    case 'h':
      return HEADS;
    case 'g':
      return HEADS_KV;
    case 'q':
    case 'k':
      return sides != NULL ? rows_of(sides[of], of) : total(of);
    case 'd':
      return DIM;
    default:
      return axis == '1' ? 1 : 16;
  }
}

static int shape_of(const char *of, const side *const sides[2], int64_t shape[4]) {
  const int n = (int)strlen(of);
  for (int i = 0; i < n; ++i) shape[i] = size_of_axis(of[i], sides);
  return n;
}

static size_t count_of(const char *of, const side *const sides[2]) {
  int64_t shape[4];
  size_t count = 1;
  for (int i = shape_of(of, sides, shape); i-- > 0;) count *= (size_t)shape[i];
  return count;
}

/* Where element i of a call's array is in that of the whole. */
static size_t place(const char *of, const side *const sides[2], size_t i) {
  int64_t own[4], all[4];
  size_t at = 0, step = 1;
  shape_of(of, NULL, all);
  for (int a = shape_of(of, sides, own); a-- > 0;) {
    const int index = (int)(i % (size_t)own[a]);
    i /= (size_t)own[a];
    at += step * (size_t)(of[a] == 'q' || of[a] == 'k' ? position(sides[of[a] == 'k'], index) : index);
    step *= (size_t)all[a];
  }
  return at;
}

typedef struct run {
  luattn_engine *engine, *cpu;
  const luattn_spec *spec;
  const spec_row *row;
  kind k;
  double *whole[ARRAYS], *sum[ARRAYS]; /* arguments and results of the whole; sums of what calls gave */
} run;

static const luattn_random numbers = {.struct_size = sizeof numbers, .seed = 77, .offset = 12};

static kind kind_of(const run *r, int i) {
  const kind sums = r->k == F64 ? F64 : F32;
  return i == X ? F32 : i == LSE || i == DX ? sums : r->k;
}

static luattn_args args_of(const run *r, DLTensor t[ARRAYS], luattn_input *input, const luattn_batch *batch) {
  *input = (luattn_input){.name = "x", .tensor = &t[X], .grad = r->row->grad ? &t[DX] : NULL};
  return (luattn_args){.struct_size = sizeof(luattn_args),
                       .q = &t[Q],
                       .k = &t[K],
                       .v = &t[V],
                       .o = &t[O],
                       .lse = r->row->no_lse ? NULL : &t[LSE],
                       .dout = &t[DOUT],
                       .dq = &t[DQ],
                       .dk = &t[DK],
                       .dv = &t[DV],
                       .inputs = input,
                       .num_inputs = r->row->axes != NULL,
                       .batch = batch,
                       .random = &numbers};
}

static DLTensor ints(int32_t *data, int64_t *count) {
  return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = count};
}

/* Of the whole, or in chunks; prepared in *memory on a GPU. */
static luattn_batch *open_batch(const side *const sides[2], bool keys_in_chunks, array *memory) {
  int64_t ends = SEQUENCES + 1, sequences = SEQUENCES, count[2];
  int32_t first[2][MOST_CHUNKS];
  DLTensor t[6];
  luattn_batch *batch;
  size_t size;
  for (int i = 0; i < 2; ++i) t[i] = ints(cu[i], &ends), t[2 + i] = ints(used[i], &sequences);
  luattn_batch_options options = {.struct_size = sizeof options,
                                  .cu_seqlens_q = &t[0],
                                  .cu_seqlens_k = &t[1],
                                  .seqused_q = &t[2],
                                  .seqused_k = &t[3]};
  for (int i = 0; i < 2 && sides != NULL; ++i) {
    count[i] = sides[i]->count;
    for (int c = 0; c < sides[i]->count; ++c) first[i][c] = sides[i]->chunk[c] * CHUNK;
    t[4 + i] = ints(first[i], &count[i]);
    options.chunk_rows = CHUNK;
  }
  if (sides != NULL) options.q_chunks = &t[4];
  if (sides != NULL && keys_in_chunks) options.kv_chunks = &t[5];
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  if (driver == NULL || memory == NULL) return batch;
  need(luattn_batch_size(batch, &size, &err) == LUATTN_OK, "batch size");
  make(memory, I32, 1, (int64_t[]){(int64_t)size / 4 + 64});
  void *const at = (void *)(((uintptr_t)memory->device + 255) / 256 * 256);
  need(luattn_batch_prepare(batch, driver, 0, at, size, NULL, &err) == LUATTN_OK, "prepare");
  return batch;
}

static void open_whole(run *r) {
  char rounded[8];
  int64_t shape[ARRAYS][4];
  DLTensor t[ARRAYS];
  luattn_input input;
  luattn_batch *batch = open_batch(NULL, false, NULL);
  float *x = calloc(count_of(axes_of(r->row, X), NULL), sizeof *x);
  for (int i = 0; i < ARRAYS; ++i) {
    const size_t count = count_of(axes_of(r->row, i), NULL);
    r->whole[i] = calloc(count, sizeof(double)), r->sum[i] = calloc(count, sizeof(double));
    t[i] = (DLTensor){.data = r->whole[i],
                      .device = {kDLCPU, 0},
                      .ndim = shape_of(axes_of(r->row, i), NULL, shape[i]),
                      .dtype = {kDLFloat, 64, 1},
                      .shape = shape[i]};
    for (size_t j = 0; j < count && (i <= DOUT || i == X); ++j) {
      put(kind_of(r, i), rounded, 0, drawn());
      r->whole[i][j] = get(kind_of(r, i), rounded, 0);
      if (i == X) x[j] = (float)r->whole[i][j];
    }
  }
  t[X].data = x, t[X].dtype.bits = 32;
  const luattn_args args = args_of(r, t, &input, batch);
  need(luattn_forward(r->cpu, r->spec, &args, NULL, &err) == LUATTN_OK, "cpu forward");
  need(luattn_backward(r->cpu, r->spec, &args, NULL, &err) == LUATTN_OK, "cpu backward");
  luattn_batch_close(batch);
  free(x);
}

static void launch(const run *r, luattn_pass pass, luattn_args *args) {
  size_t size;
  array workspace;
  need(luattn_engine_workspace_size(r->engine, r->spec, pass, args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  fill(&workspace, NAN);
  args->workspace = size > 0 ? workspace.device : NULL, args->workspace_size = size;
  need((pass == LUATTN_FORWARD ? luattn_forward : luattn_backward)(r->engine, r->spec, args, NULL, &err) == LUATTN_OK,
       pass == LUATTN_FORWARD ? "forward" : "backward");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
}

/* Of all elements, relative to the largest expected one. */
static bool judge(const run *r, const char *call, int i, const double *got, const double *want, size_t count) {
  double most = 1e-30, worst = 0;
  for (size_t j = 0; j < count; ++j) {
    if (isfinite(want[j])) most = fmax(most, fabs(want[j]));
    if (got[j] != want[j]) worst = worse(worst, fabs(got[j] - want[j]));
  }
  const double allowed = r->k == F64 ? 1e-12 : r->k == F32 ? 2e-5 : 16 * kind_unit[r->k];
  if (worst / most <= allowed) return true;
  fprintf(stderr, "FAILED: %s %s %s: %s off by %g, allowed %g\n", r->row->name, kind_name[r->k], call, names[i],
          worst / most, allowed);
  return false;
}

static void add_up(const run *r, int i, const array *t, const side *const sides[2]) {
  const char *of = axes_of(r->row, i);
  for (size_t j = 0; j < t->count; ++j) r->sum[i][place(of, sides, j)] += get(t->k, t->host, j);
}

/* Of some queries with all keys, or with some: then backward alone. */
static bool check(const run *r, const side *const sides[2], bool is_forward) {
  array t[ARRAYS], memory = {0};
  DLTensor given[ARRAYS];
  luattn_input input;
  bool ok = true;
  luattn_batch *batch = open_batch(sides, sides[1] != &all_keys, &memory);
  double *want[ARRAYS];
  for (int i = 0; i < ARRAYS; ++i) {
    const char *of = axes_of(r->row, i);
    int64_t shape[4];
    make(&t[i], kind_of(r, i), shape_of(of, sides, shape), shape);
    want[i] = calloc(t[i].count, sizeof(double));
    const bool is_read = i <= DOUT || i == X || (!is_forward && i <= LSE);
    for (size_t j = 0; j < t[i].count; ++j) {
      want[i][j] = r->whole[i][place(of, sides, j)];
      put(t[i].k, t[i].host, j, is_read ? want[i][j] : NAN);
    }
    send(&t[i]);
    given[i] = t[i].t, given[i].shape = t[i].shape;
  }
  luattn_args args = args_of(r, given, &input, batch);
  launch(r, is_forward ? LUATTN_FORWARD : LUATTN_BACKWARD, &args);
  for (int i = O; i < ARRAYS; ++i) {
    if (i == X || (i == LSE && r->row->no_lse) || (i == DX && !r->row->grad) || is_forward != (i <= LSE)) continue;
    fetch(&t[i]);
    if (!is_forward) {
      add_up(r, i, &t[i], sides);
      continue;
    }
    double *got = calloc(t[i].count, sizeof *got);
    for (size_t j = 0; j < t[i].count; ++j) got[j] = get(t[i].k, t[i].host, j);
    ok &= judge(r, "some queries", i, got, want[i], t[i].count);
    free(got);
  }
  luattn_batch_close(batch);
  for (int i = 0; i < ARRAYS; ++i) drop(&t[i]), free(want[i]);
  if (memory.device != NULL) drop(&memory);
  return ok;
}

static bool check_spec(run *r) {
  bool ok = true;
  for (int q = 0; q < PARTS; ++q) {
    ok &= check(r, (const side *[]){&parts[0][q], &all_keys}, true);
    for (int kv = 0; kv < PARTS; ++kv) (void)check(r, (const side *[]){&parts[0][q], &parts[1][kv]}, false);
  }
  for (int i = DQ; i < ARRAYS; ++i)
    if (i != X && (i != DX || r->row->grad))
      ok &= judge(r, "all parts", i, r->sum[i], r->whole[i], count_of(axes_of(r->row, i), NULL));
  return ok;
}

int main(int argc, char **argv) {
  static const char *const families[] = {"simt", "sm80", "sm90", "cpu"};
  enum { SM90 = 2, CPU = 3 }; /* sm90 backward with gradients of inputs is sm80's */
  int family = 0, k = 0;
  bool ok = true;
  if (argc < 3) return 2;
  while (family < 4 && strcmp(argv[1], families[family]) != 0) ++family;
  while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (family == 4 || k == 4) return 2;
  const luattn_engine_options options = {.struct_size = sizeof options,
                                         .device = family == CPU ? LUATTN_CPU : 0,
                                         .family = family >= SM90 ? 0 : 1 + family};
  const luattn_engine_options on_cpu = {.struct_size = sizeof on_cpu, .device = LUATTN_CPU};
  run r = {.k = (kind)k};
  need(luattn_engine_open(&on_cpu, &r.cpu, &err) == LUATTN_OK, "engine on the CPU");
  need(luattn_engine_open(&options, &r.engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(r.engine);
  for (int i = 0; i < NUM_SPECS; ++i) {
    luattn_spec *spec;
    r.row = &specs[i];
    if (argc > 3 && strcmp(argv[3], r.row->name) != 0) continue;
    need(luattn_spec_load_text(r.row->name, r.row->text, strlen(r.row->text), NULL, &spec, &err) == LUATTN_OK, "spec");
    r.spec = spec;
    open_whole(&r);
    ok &= check_spec(&r);
    for (int a = 0; a < ARRAYS; ++a) free(r.whole[a]), free(r.sum[a]);
    need(luattn_engine_forget(r.engine, spec, &err) == LUATTN_OK, "forget");
    need(luattn_engine_forget(r.cpu, spec, &err) == LUATTN_OK, "forget");
    luattn_spec_free(spec);
  }
  luattn_engine_close(r.engine);
  luattn_engine_close(r.cpu);
  return !ok;
}
