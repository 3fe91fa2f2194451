/* call_chunks_test.c: calls on chunks of a whole (luattn_batch_options.q_chunks, kv_chunks), from luattn_forward and
 * luattn_backward to the kernels, which the PTX machine executes. Rows of q, of k and v, and of inputs along them, lie in
 * another order of chunks than in the whole; results must be those of the whole in one call on the CPU, in that order. A
 * second call has some chunks alone, and is compared with the CPU path, which has an offset for each row.
 *
 * call_chunks_test FAMILY DTYPE [SPEC]: simt f32, simt f64, sm80 f16, sm90 bf16, cpu f64
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/batch.h"
#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { BATCH = 2, HEADS = 2, HEADS_KV = 1, Q_LEN = 300, KV_LEN = 334, DIM = 64, ROWS = 128 };

/* axes: of the input x, one letter each: b, h, q, k; a digit is a free axis of 16. */
typedef struct spec_row {
  const char *name, *text, *axes;
  kind input;
  bool grad, no_lse;
} spec_row;

static const spec_row specs[] = {
    {"causal", "return attention { score_mod = softcap(20), block_mask = causal() }", NULL, F32, false, false},
    {"none", "return attention { score_mod = alibi() }", NULL, F32, false, false},
    {"window",
     "return attention { block_mask = function(b, h, q, kv) return kv <= q and q - kv < 100 + 20 * b or kv < 5 end }",
     NULL, F32, false, false},
    {"lengths",
     "return attention { score_mod = function(s, b, h, q, kv) return s + 0.3 * (q - kv) / (q_len + kv_len) + h / heads "
     "+ b end,\n"
     "  block_mask = function(b, h, q, kv) return kv - kv_len <= q - q_len + 30 end }",
     NULL, F32, false, false},
    {"documents",
     "return attention { inputs = { x = { axes = {'b', 'kv'}, dtype = 'i32' }, },\n"
     "  block_mask = function(b, h, q, kv) return x[{b, kv}] * 40 <= q and q - kv < 190 end }",
     "bk", I32, false, false},
    {"bias",
     "return attention { inputs = { x = { axes = {'h', 'q', 'kv'}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, kv) return s + x[{h, q, kv}] end, block_mask = causal_bottom_right() }",
     "hqk", F32, true, false},
    {"buckets",
     "return attention { inputs = { x = { axes = {'h', 16}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, kv) return s + x[{h, clamp((kv - q) // 20 + 8, 0, 15)}] end }",
     "h9", F32, true, false},
    {"grid",
     "return attention { block_mask = function(b, h, q, kv)\n"
     "  return abs(q // 12 - kv // 12) <= 8 and abs(q % 12 - kv % 12) <= 2 end }",
     NULL, F32, false, false},
    {"dilated", "return attention { block_mask = function(b, h, q, kv) return eq((q - kv) % 3, 0) and kv <= q end }",
     NULL, F32, false, false},
    {"row and column",
     "return attention { inputs = { x = { axes = {'q'}, grad = true } }, score_mod = function(s, b, h, q, kv)\n"
     "  return s * (1 + 0.1 * x[q]) + 0.01 * q - 0.02 * kv end }",
     "q", F32, true, false},
    {"mods",
     "return attention { inputs = { x = { axes = {'hkv', 'kv'}, grad = true } }, block_mask = causal(),\n"
     "  query_mod = function(x, b, h, pos, d) return x * (1 + 0.001 * pos + 0.1 * h) end,\n"
     "  key_mod = function(y, b, h, pos, d) return y * x[{h, pos}] end,\n"
     "  value_mod = function(y, b, h, pos, d) return y + 0.01 * pos + 0.1 * h end }",
     "gk", F32, true, false},
    {"rotary",
     "local function turn(x, b, h, pos, d)\n"
     "  local a = 0.02 * pos * (1 + d % (head_dim // 2)) + h\n"
     "  local other = where(d < head_dim // 2, -1, 1) * x[(d + head_dim // 2) % head_dim]\n"
     "  return (x + other * a) / (1 + a * a)\n"
     "end\n"
     "return attention { inputs = { x = { axes = {'hkv', 'kv'}, grad = true } }, query_mod = turn, block_mask = "
     "causal(),\n"
     "  key_mod = function(y, b, h, pos, d) return turn(y, b, h, pos, d) * x[{h, pos}] end }",
     "gk", F32, true, false},
    {"random",
     "return attention { score_mod = function(s, b, h, q, kv) return s + 2 * random(b, h, q, kv) end,\n"
     "  key_mod = function(x, b, h, pos, d) return x * (1 + random(b, h, pos, d)) end,\n"
     "  block_mask = function(b, h, q, kv) return kv <= q and random(b, h, q // 3, kv // 5) < 0.7 end }",
     NULL, F32, false, false},
    {"dropout", "return attention { online_func = dropout(0.3), block_mask = causal() }", NULL, F32, false, false},
    {"sigmoid", "return attention { online_func = sigmoid_attention, block_mask = causal() }", NULL, F32, false, true},
};
enum { NUM_SPECS = sizeof specs / sizeof *specs };

/* ---- chunks ---- */

/* The chunks that a call has, in the order of its rows, and how many rows. The last one may be that at the whole's end. */
typedef struct side {
  int chunk[3], count, rows;
} side;
typedef struct call_chunks {
  const char *name;
  side q, kv;
} call_chunks;

static const call_chunks orders[] = {
    {"in another order", {{1, 0, 2}, 3, Q_LEN}, {{1, 0, 2}, 3, KV_LEN}},
    {"some chunks", {{1, 2}, 2, Q_LEN - ROWS}, {{1, 0}, 2, 2 * ROWS}},
    {"one chunk of queries", {{2}, 1, Q_LEN - 2 * ROWS}, {{1, 2}, 2, KV_LEN - ROWS}},
};

static int position(const side *s, int row) { return s->chunk[row / ROWS] * ROWS + row % ROWS; }

/* ---- arrays of the whole, and of a call ---- */

enum { Q, K, V, DOUT, O, LSE, DQ, DK, DV, X, DX, ARRAYS };
static const char *const names[ARRAYS] = {[O] = "o", [LSE] = "lse", [DQ] = "dq", [DK] = "dk", [DV] = "dv", [DX] = "dx"};
static const char *const axes[ARRAYS] = {[Q] = "bhqd",  [K] = "bgkd",  [V] = "bgkd",  [DOUT] = "bhqd", [O] = "bhqd",
                                         [LSE] = "bhq", [DQ] = "bhqd", [DK] = "bgkd", [DV] = "bgkd"};

static const char *axes_of(const spec_row *row, int i) { return i < X ? axes[i] : row->axes != NULL ? row->axes : "1"; }

static int64_t size_of_axis(char axis, const call_chunks *c) {
  switch (axis) {
    case 'b':
      return BATCH;
    case 'h':
      return HEADS;
    case 'g':
      return HEADS_KV;
    case 'q':
      return c != NULL ? c->q.rows : Q_LEN;
    case 'k':
      return c != NULL ? c->kv.rows : KV_LEN;
    case 'd':
      return DIM;
    default:
      return axis == '1' ? 1 : 16;
  }
}

static int shape_of(const char *of, const call_chunks *c, int64_t shape[4]) {
  const int n = (int)strlen(of);
  for (int i = 0; i < n; ++i) shape[i] = size_of_axis(of[i], c);
  return n;
}

static size_t count_of(const char *of, const call_chunks *c) {
  int64_t shape[4];
  size_t count = 1;
  for (int i = shape_of(of, c, shape); i-- > 0;) count *= (size_t)shape[i];
  return count;
}

/* Where element i of a call's array is in that of the whole. */
static size_t place(const char *of, const call_chunks *c, size_t i) {
  int64_t own[4], all[4];
  size_t at = 0, step = 1;
  const int n = shape_of(of, c, own);
  shape_of(of, NULL, all);
  for (int a = n; a-- > 0;) {
    const int index = (int)(i % (size_t)own[a]);
    i /= (size_t)own[a];
    at += step * (size_t)(of[a] == 'q' ? position(&c->q, index) : of[a] == 'k' ? position(&c->kv, index) : index);
    step *= (size_t)all[a];
  }
  return at;
}

typedef struct run {
  luattn_engine *engine;
  const luattn_spec *spec;
  const spec_row *row;
  kind k;
  double *whole[ARRAYS]; /* arguments, and the results of the whole; of some chunks, those of the CPU path */
} run;

static const luattn_random numbers = {.struct_size = sizeof numbers, .seed = 77, .offset = 12};

static kind kind_of(const run *r, int i) {
  const kind sums = r->k == F64 ? F64 : F32;
  return i == X ? r->row->input : i == LSE || i == DX ? sums : r->k;
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

/* Computes on the CPU: the whole, or a call's chunks. */
static void compute(const run *r, double *const data[ARRAYS], const call_chunks *c, const luattn_batch *batch) {
  int64_t shape[ARRAYS][4];
  DLTensor t[ARRAYS];
  luattn_input input;
  int32_t *ints = calloc(count_of(axes_of(r->row, X), c), sizeof *ints);
  for (int i = 0; i < ARRAYS; ++i)
    t[i] = (DLTensor){.data = data[i],
                      .device = {kDLCPU, 0},
                      .ndim = shape_of(axes_of(r->row, i), c, shape[i]),
                      .dtype = {kDLFloat, 64, 1},
                      .shape = shape[i]};
  for (size_t i = 0; i < count_of(axes_of(r->row, X), c); ++i) ints[i] = (int32_t)data[X][i];
  if (r->row->input == I32) t[X].data = ints, t[X].dtype = (DLDataType){kDLInt, 32, 1};
  const luattn_args args = args_of(r, t, &input, batch);
  need(luattn_cpu_forward(r->spec, &args, &err) == LUATTN_OK, "cpu forward");
  need(luattn_cpu_backward(r->spec, &args, &err) == LUATTN_OK, "cpu backward");
  free(ints);
}

static void open_whole(run *r) {
  char rounded[8];
  for (int i = 0; i < ARRAYS; ++i) {
    const size_t count = count_of(axes_of(r->row, i), NULL);
    r->whole[i] = calloc(count, sizeof(double));
    if (i > DOUT && i != X) continue;
    for (size_t j = 0; j < count; ++j) {
      put(kind_of(r, i), rounded, 0, r->row->input == I32 && i == X ? (double)(j % KV_LEN / 66) : drawn());
      r->whole[i][j] = get(kind_of(r, i), rounded, 0);
    }
  }
  compute(r, r->whole, NULL, NULL);
}

static luattn_batch *open_batch(const call_chunks *c, int32_t *first[2], array device[2]) {
  const side *sides[2] = {&c->q, &c->kv};
  DLTensor t[2];
  luattn_batch *batch;
  for (int s = 0; s < 2; ++s) {
    make(&device[s], I32, 1, (int64_t[]){sides[s]->count});
    for (int i = 0; i < sides[s]->count; ++i)
      put(I32, device[s].host, (size_t)i, first[s][i] = sides[s]->chunk[i] * ROWS);
    send(&device[s]);
    t[s] = device[s].t;
  }
  const luattn_batch_options options = {.struct_size = sizeof options,
                                        .q_len = Q_LEN,
                                        .kv_len = KV_LEN,
                                        .q_chunks = &t[0],
                                        .kv_chunks = &t[1],
                                        .chunk_rows = ROWS};
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  return batch;
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

/* Returns the largest difference relative to the largest expected value. */
static double difference(const array *got, const double *want) {
  double most = 1e-30, worst = 0;
  for (size_t i = 0; i < got->count; ++i) {
    const double x = get(got->k, got->host, i);
    if (isfinite(want[i])) most = fmax(most, fabs(want[i]));
    if (x != want[i]) worst = worse(worst, fabs(x - want[i]));
  }
  return worst / most;
}

static bool judge(const run *r, const call_chunks *c, int i, double off) {
  const double allowed = r->k == F64 ? 1e-12 : r->k == F32 ? 2e-5 : 16 * kind_unit[r->k];
  if (off <= allowed) return true;
  fprintf(stderr, "FAILED: %s %s %s: %s off by %g, allowed %g\n", r->row->name, kind_name[r->k], c->name, names[i], off,
          allowed);
  return false;
}

static bool check(const run *r, const call_chunks *c) {
  double *want[ARRAYS];
  array t[ARRAYS], device[2];
  DLTensor given[ARRAYS];
  luattn_input input;
  int32_t first[2][3];
  bool ok = true;
  for (int i = 0; i < ARRAYS; ++i) {
    const char *of = axes_of(r->row, i);
    int64_t shape[4];
    want[i] = calloc(count_of(of, c), sizeof(double));
    for (size_t j = 0; j < count_of(of, c); ++j) want[i][j] = r->whole[i][place(of, c, j)];
    const int ndim = shape_of(of, c, shape);
    make(&t[i], kind_of(r, i), ndim, shape);
    given[i] = t[i].t, given[i].shape = t[i].shape;
  }
  luattn_batch *batch = open_batch(c, (int32_t *[]){first[0], first[1]}, device);
  if (c != orders) {
    DLTensor host[2];
    luattn_batch *on_host;
    for (int s = 0; s < 2; ++s) host[s] = device[s].t, host[s].data = first[s], host[s].device = (DLDevice){kDLCPU, 0};
    const luattn_batch_options options = {.struct_size = sizeof options,
                                          .q_len = Q_LEN,
                                          .kv_len = KV_LEN,
                                          .q_chunks = &host[0],
                                          .kv_chunks = &host[1],
                                          .chunk_rows = ROWS};
    need(luattn_batch_open(&options, &on_host, &err) == LUATTN_OK, "batch");
    memset(want[DX], 0, count_of(axes_of(r->row, DX), c) * sizeof(double));
    compute(r, want, c, on_host);
    luattn_batch_close(on_host);
  }
  for (int i = 0; i < ARRAYS; ++i) {
    const bool is_read = i <= DOUT || i == X;
    for (size_t j = 0; j < t[i].count; ++j) put(t[i].k, t[i].host, j, is_read ? want[i][j] : NAN);
    send(&t[i]);
  }
  luattn_args args = args_of(r, given, &input, batch);
  launch(r, LUATTN_FORWARD, &args);
  for (int i = O; i <= LSE; ++i) {
    if (i == LSE && r->row->no_lse) continue;
    fetch(&t[i]);
    ok &= judge(r, c, i, difference(&t[i], want[i]));
    for (size_t j = 0; j < t[i].count; ++j) put(t[i].k, t[i].host, j, want[i][j]);
    send(&t[i]);
  }
  launch(r, LUATTN_BACKWARD, &args);
  for (int i = DQ; i < ARRAYS; ++i) {
    if (i == X || (i == DX && !r->row->grad)) continue;
    fetch(&t[i]);
    ok &= judge(r, c, i, difference(&t[i], want[i]));
  }
  luattn_batch_close(batch);
  for (int i = 0; i < ARRAYS; ++i) drop(&t[i]), free(want[i]);
  drop(&device[0]), drop(&device[1]);
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
  run r = {.k = (kind)k};
  need(luattn_engine_open(&options, &r.engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(r.engine);
  for (int i = 0; i < NUM_SPECS; ++i) {
    luattn_spec *spec;
    r.row = &specs[i];
    if (argc > 3 && strcmp(argv[3], r.row->name) != 0) continue;
    need(luattn_spec_load_text(r.row->name, r.row->text, strlen(r.row->text), NULL, &spec, &err) == LUATTN_OK, "spec");
    r.spec = spec;
    open_whole(&r);
    for (size_t c = 0; c < sizeof orders / sizeof *orders; ++c) ok &= check(&r, &orders[c]);
    for (int a = 0; a < ARRAYS; ++a) free(r.whole[a]);
    need(luattn_engine_forget(r.engine, spec, &err) == LUATTN_OK, "forget");
    luattn_spec_free(spec);
  }
  luattn_engine_close(r.engine);
  return !ok;
}
