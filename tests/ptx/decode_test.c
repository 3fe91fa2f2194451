/* decode_test.c: the forward kernel for few queries and many keys (luattn_target.decode), from luattn_forward to the
 * kernels, which the PTX machine executes. Each call's O, lse and saved rows must be those of the CPU in double
 * precision. Groups of 1 to 16 query heads, 1 to 16 queries, odd numbers of keys, 1 to 64 splits; scores and masks that
 * differ between the heads of a tile's rows; rows and splits with nothing kept; NaN in the rows behind q and k. A batch
 * entry alone must give the same bits as among others. And errors: what the kernel lacks.
 *
 * decode_test DTYPE [few | CASE]: bf16, f16; a case by its number alone
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/arrays.h"

enum { BEHIND = 3 }; /* rows of NaN */

typedef struct case_row {
  const char *name, *text;
  bool no_lse, saves, has_input;
} case_row;
#define HEADS_DIFFER "block_mask = function(b, h, q, kv) return kv >= 40 * h and ne((kv + h) % 3, 0) end"
static const case_row cases[] = {
    {"plain", "return attention {}", false, false, false},
    {"causal", "return attention { block_mask = causal_bottom_right() }", false, false, false},
    {"slopes",
     "return attention { inputs = { x = { axes = {'h'}, dtype = 'f32' } }, score_mod = function(s, b, h, q, kv)\n"
     "  return s - 0.02 * x[h] * abs(q + kv_len - q_len - kv) + 0.3 * b end }",
     false, false, true},
    {"sigmoid", "return attention { online_func = sigmoid_attention }", true, false, false},
    {"capped", "return attention { score_mod = softcap(2), block_mask = sliding_window(60, 100) }", false, false,
     false},
    {"mask_of_heads", "return attention { " HEADS_DIFFER " }", false, false, false},
    {"sigmoid_of_heads", "return attention { online_func = sigmoid_attention, " HEADS_DIFFER " }", true, false, false},
    {"few_keys", "return attention { block_mask = function(b, h, q, kv) return eq(kv // 8, 5) and eq(q % 2, 0) end }",
     false, false, false},
    {"nothing", "return attention { block_mask = function(b, h, q, kv) return kv < 0 end }", false, false, false},
    {"one_more", "return attention { online_func = softmax_one, block_mask = causal_bottom_right() }", false, false,
     false},
    {"retention", "return attention { online_func = online_retention, block_mask = causal_bottom_right() }", true, true,
     false},
    {"sink", "return attention { inputs = { x = { axes = {'h'}, dtype = 'f32' } }, online_func = attention_sink('x') }",
     false, false, true},
    {"random", "return attention { score_mod = function(s, b, h, q, kv) return s + 2 * random(b, h, q, kv) end }",
     false, false, false},
    {"documents",
     "return attention { inputs = { x = { axes = {'kv'}, dtype = 'f32' } }, score_mod = function(s, b, h, q, kv)\n"
     "  return s + x[kv] * (h + 1) end }",
     false, false, true},
    {"dropped", "return attention { online_func = dropout(0.3), block_mask = causal_bottom_right() }", false, false,
     false},
    {"dropped_sigmoid", "return attention { online_func = dropout(0.5, sigmoid_attention), " HEADS_DIFFER " }", true,
     false, false},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

typedef struct shape_row {
  int batch, heads_kv, group, q_len, kv_len, dim, dim_v, splits;
} shape_row;
static const shape_row shapes[] = {
    {2, 2, 4, 1, 333, 64, 64, 0},    {1, 2, 4, 4, 257, 128, 128, 3}, {1, 1, 1, 1, 1, 64, 64, 1},
    {1, 2, 2, 16, 130, 64, 64, 2},   {1, 1, 8, 2, 1031, 64, 64, 5},  {1, 1, 12, 3, 200, 64, 128, 2},
    {2, 1, 16, 1, 95, 128, 64, 64},  {1, 1, 3, 7, 177, 40, 24, 4},   {1, 1, 40, 2, 64, 64, 64, 2},
    {1, 1, 2, 5, 49, 256, 256, 2},   {1, 1, 4, 9, 70, 192, 128, 2},  {1, 1, 1, 16, 33, 80, 80, 1},
    {1, 1, 4, 16, 300, 128, 128, 2}, {1, 1, 6, 9, 150, 128, 96, 0},
};
enum { NUM_SHAPES = sizeof shapes / sizeof *shapes };

typedef struct problem {
  shape_row s;
  array q, k, v, o, lse, saved, x;
} problem;

/* Rows BEHIND the last one exist in memory, and are NaN. */
static void draw(array *a, kind k, int batch, int heads, int len, int dim, int64_t strides[4]) {
  const int64_t all = len + BEHIND;
  make(a, k, 4, (int64_t[]){batch, all, heads, dim});
  for (size_t i = 0; i < a->count; ++i) {
    const int64_t row = (int64_t)i / (heads * dim) % all;
    put(k, a->host, i, row < len ? drawn() : NAN);
  }
  send(a);
  const int64_t shape[4] = {batch, heads, len, dim}, step[4] = {all * heads * dim, dim, heads * dim, 1};
  memcpy(a->shape, shape, sizeof shape);
  memcpy(strides, step, sizeof step);
  a->t.strides = strides;
}

static int64_t strides[4][4];

static void open_problem(problem *p, const shape_row *s, kind k) {
  const int heads = s->heads_kv * s->group;
  *p = (problem){.s = *s};
  draw(&p->q, k, s->batch, heads, s->q_len, s->dim, strides[0]);
  draw(&p->k, k, s->batch, s->heads_kv, s->kv_len, s->dim, strides[1]);
  draw(&p->v, k, s->batch, s->heads_kv, s->kv_len, s->dim_v, strides[2]);
  draw(&p->o, k, s->batch, heads, s->q_len, s->dim_v, strides[3]);
  make(&p->lse, F32, 3, (int64_t[]){s->batch, heads, s->q_len});
  make(&p->saved, F32, 4, (int64_t[]){1, s->batch, heads, s->q_len});
  make(&p->x, F32, 1, (int64_t[]){heads > s->kv_len ? heads : s->kv_len});
  for (size_t i = 0; i < p->x.count; ++i) put(F32, p->x.host, i, drawn());
  send(&p->x);
  fill(&p->lse, NAN), fill(&p->saved, NAN);
}
static void close_problem(problem *p) {
  array *all[] = {&p->q, &p->k, &p->v, &p->o, &p->lse, &p->saved, &p->x};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
}

static const luattn_random draws = {.struct_size = sizeof draws, .seed = 7};

/* Sizes the input as its axis asks. */
static luattn_args args_of(problem *p, const case_row *c, luattn_input *input) {
  p->x.shape[0] = strstr(c->text, "axes = {'kv'}") != NULL ? p->s.kv_len : p->s.heads_kv * p->s.group;
  *input = (luattn_input){.name = "x", .tensor = &p->x.t};
  return (luattn_args){.struct_size = sizeof(luattn_args),
                       .q = &p->q.t,
                       .k = &p->k.t,
                       .v = &p->v.t,
                       .o = &p->o.t,
                       .lse = c->no_lse ? NULL : &p->lse.t,
                       .saved = c->saves ? &p->saved.t : NULL,
                       .inputs = input,
                       .num_inputs = c->has_input,
                       .num_splits = p->s.splits,
                       .random = &draws,
                       .decode = LUATTN_DECODE_ALWAYS};
}

static void run(luattn_engine *engine, const luattn_spec *spec, luattn_args *args) {
  size_t size;
  array workspace;
  const char *plan;
  need(luattn_engine_plan(engine, spec, LUATTN_FORWARD, args, &plan, &err) == LUATTN_OK, "plan");
  need(strstr(plan, "decode: ") != NULL, plan);
  need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  fill(&workspace, NAN);
  args->workspace = size > 0 ? workspace.device : NULL, args->workspace_size = size;
  need(luattn_forward(engine, spec, args, NULL, &err) == LUATTN_OK, "forward");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
}

/* ---- the CPU's results ---- */

typedef struct wanted {
  double *o, *size, *lse, *saved; /* size: O of |v| */
} wanted;

static double *copy(const array *a, const int64_t *step, bool absolute) {
  const int64_t *n = a->shape;
  double *x = malloc((size_t)(n[0] * n[1] * n[2] * n[3] + 1) * sizeof *x);
  for (int64_t b = 0, i = 0; b < n[0]; ++b)
    for (int64_t h = 0; h < n[1]; ++h)
      for (int64_t r = 0; r < n[2]; ++r)
        for (int64_t d = 0; d < n[3]; ++d, ++i) {
          x[i] = get(a->k, a->host, (size_t)(b * step[0] + h * step[1] + r * step[2] + d));
          if (absolute) x[i] = fabs(x[i]);
        }
  return x;
}

static DLTensor on_cpu(const array *a, double *data, int ndim) {
  return (DLTensor){
      .data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {kDLFloat, 64, 1}, .shape = (int64_t *)a->shape};
}

static wanted compute(problem *p, const case_row *c, const luattn_spec *spec) {
  const size_t rows = p->lse.count, count = rows * (size_t)p->s.dim_v;
  wanted w = {calloc(count + 1, 8), calloc(count + 1, 8), calloc(rows + 1, 8), calloc(rows + 1, 8)};
  double *x = malloc((p->x.count + 1) * sizeof *x);
  for (size_t i = 0; i < p->x.count; ++i) x[i] = get(F32, p->x.host, i);
  for (int absolute = 0; absolute < 2; ++absolute) {
    double *q = copy(&p->q, strides[0], false), *k = copy(&p->k, strides[1], false),
           *v = copy(&p->v, strides[2], absolute);
    DLTensor tq = on_cpu(&p->q, q, 4), tk = on_cpu(&p->k, k, 4), tv = on_cpu(&p->v, v, 4), tx = on_cpu(&p->x, x, 1),
             to = on_cpu(&p->o, absolute ? w.size : w.o, 4), tl = on_cpu(&p->lse, w.lse, 3),
             ts = on_cpu(&p->saved, w.saved, 4);
    luattn_input input;
    luattn_args args = args_of(p, c, &input);
    float *of_x = p->x.host; /* inputs keep their type */
    tx.data = of_x, tx.dtype = (DLDataType){kDLFloat, 32, 1};
    input.tensor = &tx;
    args.q = &tq, args.k = &tk, args.v = &tv, args.o = &to;
    if (args.lse != NULL) args.lse = &tl;
    if (args.saved != NULL) args.saved = &ts;
    need(luattn_cpu_forward(spec, &args, &err) == LUATTN_OK, "the CPU");
    free(q), free(k), free(v);
  }
  free(x);
  return w;
}

static bool is_close(double got, double want, double allowed) { return got == want || fabs(got - want) <= allowed; }

/* The first difference, printed. */
static bool compare(const problem *p, const case_row *c, const wanted *w) {
  double *o = copy(&p->o, strides[3], false);
  const size_t rows = p->lse.count, dim = (size_t)p->s.dim_v;
  bool ok = true;
  for (size_t i = 0; i < rows * dim && ok; ++i) {
    /* Of weights of both signs, size says less than what was added up, which is about 1. */
    const double allowed = 4 * kind_unit[p->o.k] * (c->saves ? 1 : fabs(w->size[i]) + 1e-3);
    ok = is_close(o[i], w->o[i], allowed);
    if (!ok)
      fprintf(stderr, "O of row %zu, channel %zu: is %g, expected %g, allowed %g; ", i / dim, i % dim, o[i], w->o[i],
              allowed);
  }
  for (size_t i = 0; i < rows && ok; ++i) {
    const double lse = get(F32, p->lse.host, i), saved = get(F32, p->saved.host, i);
    if (!c->no_lse && !is_close(lse, w->lse[i], 2e-5))
      ok = false, fprintf(stderr, "lse of row %zu: is %g, expected %g; ", i, lse, w->lse[i]);
    else if (c->saves && !is_close(saved, w->saved[i], 1e-5 * (1 + fabs(w->saved[i]))))
      ok = false, fprintf(stderr, "saved number of row %zu: is %g, expected %g; ", i, saved, w->saved[i]);
  }
  free(o);
  return ok;
}

static bool check(luattn_engine *engine, const luattn_spec *spec, const case_row *c, const shape_row *s, kind k) {
  problem p;
  luattn_input input;
  open_problem(&p, s, k);
  luattn_args args = args_of(&p, c, &input);
  run(engine, spec, &args);
  fetch(&p.o), fetch(&p.lse), fetch(&p.saved);
  wanted w = compute(&p, c, spec);
  const bool ok = compare(&p, c, &w);
  if (!ok)
    fprintf(stderr, "FAILED: %s %s: B%d H%d/%d Sq%d Sk%d D%d Dv%d, %d splits\n", c->name, kind_name[k], s->batch,
            s->heads_kv * s->group, s->heads_kv, s->q_len, s->kv_len, s->dim, s->dim_v, s->splits);
  free(w.o), free(w.size), free(w.lse), free(w.saved);
  close_problem(&p);
  return ok;
}

/* A kernel with tiles of 64 rows, whatever the head dims. */
static void run_64(const luattn_spec *spec, luattn_args *args, const problem *p) {
  const luattn_tiles tiles = {.tile_m = 64, .tile_n = 32, .threads = 128, .stages = p->s.dim > 128 ? 3 : 6};
  const luattn_target target = {.struct_size = sizeof target,
                                .pass = LUATTN_FORWARD,
                                .dtype = p->q.k == F16 ? LUATTN_F16 : LUATTN_BF16,
                                .head_dim = p->s.dim,
                                .head_dim_v = p->s.dim_v,
                                .arch = 90,
                                .tiles = &tiles,
                                .decode = 1};
  luattn_image *image;
  luattn_kernel *kernel;
  array workspace;
  size_t size;
  need(luattn_compile(spec, &target, &image, NULL, &err) == LUATTN_OK, "compiling 64 rows");
  need(luattn_kernel_load(driver, 0, image, &kernel, &err) == LUATTN_OK, "loading 64 rows");
  need(luattn_workspace_size(kernel, args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  fill(&workspace, NAN);
  args->workspace = workspace.device, args->workspace_size = size;
  need(luattn_launch(kernel, args, NULL, &err) == LUATTN_OK, "forward");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
  luattn_kernel_unload(kernel);
  luattn_image_free(image);
}

/* 33 to 64 rows of a kv head, fewer, and more; also 40 heads, of which a lane asks for two. */
static bool tiles_of_64(const luattn_spec *spec, const case_row *c, kind k, bool few) {
  static const shape_row of_64[] = {{1, 2, 4, 12, 333, 128, 128, 2}, {1, 1, 40, 1, 530, 64, 64, 3},
                                    {1, 1, 3, 30, 177, 40, 24, 1},   {2, 1, 4, 9, 1031, 64, 128, 0},
                                    {1, 1, 8, 1, 70, 64, 64, 0},     {1, 1, 48, 3, 257, 64, 64, 2}};
  bool ok = true;
  for (size_t i = 0; i < sizeof of_64 / sizeof *of_64; ++i) {
    problem p;
    luattn_input input;
    if (few && i > 1) break;
    open_problem(&p, &of_64[i], k);
    luattn_args args = args_of(&p, c, &input);
    run_64(spec, &args, &p);
    fetch(&p.o), fetch(&p.lse), fetch(&p.saved);
    wanted w = compute(&p, c, spec);
    if (!compare(&p, c, &w)) ok = false, fprintf(stderr, "FAILED: 64 rows: %s, shape %zu\n", c->name, i);
    free(w.o), free(w.size), free(w.lse), free(w.saved);
    close_problem(&p);
  }
  return ok;
}

/* Each entry of a batch in a call of its own. */
static bool entries_alone(luattn_engine *engine, const luattn_spec *spec, kind k) {
  const shape_row s = {3, 2, 4, 2, 400, 64, 64, 3};
  problem p;
  luattn_input input;
  open_problem(&p, &s, k);
  luattn_args args = args_of(&p, &cases[0], &input);
  run(engine, spec, &args);
  fetch(&p.o);
  double *all = copy(&p.o, strides[3], false);
  const size_t each = (size_t)(s.heads_kv * s.group * s.q_len * s.dim_v);
  bool same = true;
  p.q.shape[0] = p.k.shape[0] = p.v.shape[0] = p.o.shape[0] = p.lse.shape[0] = 1;
  array *const moved[] = {&p.q, &p.k, &p.v};
  for (int b = 0; b < s.batch; ++b) {
    for (int i = 0; i < 3; ++i) moved[i]->t.byte_offset = (uint64_t)(b * strides[i][0] * 2);
    run(engine, spec, &args);
    fetch(&p.o);
    double *one = copy(&p.o, strides[3], false);
    same = same && memcmp(one, all + (size_t)b * each, each * sizeof *one) == 0;
    free(one);
  }
  if (!same) fprintf(stderr, "FAILED: an entry alone has other bits than among others\n");
  free(all);
  close_problem(&p);
  return same;
}

/* ---- errors ---- */

typedef struct refusal {
  const char *text;
  luattn_pass pass;
  luattn_dtype dtype;
  int family, decode, tile_m, tile_n;
  luattn_status status;
  const char *message;
  int many_rows;
} refusal;
/* A root of a sum of squares, of which no merge is known. */
#define UNMERGED                                                                                                       \
  "return attention { online_func = { name = 'root', online_rowscales = { n = 0 }, final_rowscales = {},\n"            \
  "  online_fwd = function(scores, r, b, h, q) return scores, { n = sqrt(r.n * r.n + reduce_sum(scores * scores)) }, " \
  "1 end,\n"                                                                                                           \
  "  online_fwd_epilogue = function(o, r, b, h, q) return o / r.n, {} end } }"
static const refusal refusals[] = {
    {"return attention {}", LUATTN_FORWARD, LUATTN_BF16, 0, 3, 0, 0, LUATTN_INVALID,
     "target: decode: is 3, expected 0 to 2", 0},
    {"return attention {}", LUATTN_BACKWARD, LUATTN_BF16, 0, 1, 0, 0, LUATTN_INVALID,
     "target: decode: is 1 for a backward kernel, and is of forward alone; leave it 0", 0},
    {"return attention {}", LUATTN_FORWARD, LUATTN_F32, 0, 1, 0, 0, LUATTN_UNSUPPORTED,
     "target: decode: is 1 for f32, and the decode kernel runs f16 and bf16; leave it 0", 0},
    {"return attention {}", LUATTN_FORWARD, LUATTN_F16, 1 + LUATTN_SM90, 1, 0, 0, LUATTN_UNSUPPORTED,
     "target: decode: is 1 for the family sm90, and the decode kernel is of sm80; leave family 0", 0},
    {"return attention {}", LUATTN_FORWARD, LUATTN_F16, 0, 1, 48, 64, LUATTN_INVALID,
     "plan: tile_m: 48 is not possible: decode takes 16, 32 or 64; leave it 0 to let the plan choose", 0},
    {"return attention {}", LUATTN_FORWARD, LUATTN_F16, 0, 1, 16, 80, LUATTN_INVALID,
     "plan: tile_n: 80 is not possible: decode takes multiples of 16 for each warp, 64 for four; leave it 0 to let the "
     "plan choose",
     0},
    {"return attention {}", LUATTN_FORWARD, LUATTN_F16, 0, 1, 64, 32, LUATTN_INVALID,
     "target: tiles: 64 x 32, 128 threads, 3 stages (0, 0) is not one of the ",
     0}, /* of 16 channels a warp copies 16 rows at once */
    {UNMERGED, LUATTN_FORWARD, LUATTN_F16, 0, 1, 0, 0, LUATTN_UNSUPPORTED, "parts of a row cannot be merged", 0},
    {"return attention {}", LUATTN_FORWARD, LUATTN_F16, 0, 1, 0, 0, LUATTN_INVALID,
     "target: many_rows: is 2, expected 0 or 1", 2},
};

static bool refuses(void) {
  bool ok = true;
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; ++i) {
    const refusal *r = &refusals[i];
    luattn_spec *spec;
    char *text = NULL;
    need(luattn_spec_load_text("refused", r->text, strlen(r->text), NULL, &spec, &err) == LUATTN_OK, "spec");
    const bool all = r->tile_m == 64; /* with so many threads */
    const luattn_tiles tiles = {.tile_m = r->tile_m, .tile_n = r->tile_n, .threads = 128, .stages = 3};
    const luattn_target target = {.struct_size = sizeof target,
                                  .pass = r->pass,
                                  .dtype = r->dtype,
                                  .head_dim = all ? 16 : 64,
                                  .arch = 90,
                                  .family = r->family,
                                  .tile_m = all ? 0 : r->tile_m,
                                  .tile_n = all ? 0 : r->tile_n,
                                  .tiles = all ? &tiles : NULL,
                                  .decode = r->decode,
                                  .many_rows = r->many_rows};
    const luattn_status status = luattn_emit(spec, &target, "spec", &text, &err);
    if (status != r->status || strstr(err.message, r->message) == NULL)
      ok = false, fprintf(stderr, "FAILED: refusal %zu: status %d: %s\n", i, (int)status, err.message);
    luattn_text_free(text);
    luattn_spec_free(spec);
  }
  return ok;
}

static bool refuses_splits(luattn_engine *engine, const luattn_spec *spec, kind k) {
  problem p;
  luattn_input input;
  size_t size;
  open_problem(&p, &shapes[2], k);
  luattn_args args = args_of(&p, &cases[0], &input);
  args.num_splits = 65;
  bool ok = luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &size, &err) == LUATTN_INVALID &&
            strstr(err.message, "num_splits: is 65, expected 1 to 64, or 0 to leave it to the launch") != NULL;
  if (!ok) fprintf(stderr, "FAILED: 65 splits: %s\n", err.message);
  args.num_splits = 0, args.decode = 3;
  ok = luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &size, &err) == LUATTN_INVALID &&
       strstr(err.message, "decode: is 3, expected a luattn_decode, 0 to 2") != NULL && ok;
  if (!ok) fprintf(stderr, "FAILED: %s\n", err.message);
  close_problem(&p);
  return ok;
}

/* Which kernel an engine takes by itself: the one that a model says is faster, where the spec has decode. */
static bool chooses(luattn_engine *engine, kind k) {
  static const struct {
    const char *text;
    int group, q_len, kv_len, decode;
    const char *plan;
    bool is_there;
  } choices[] = {
      {"return attention {}", 4, 4, 1024, LUATTN_DECODE_AUTO, "decode: ", true},
      {"return attention {}", 4, 4, 1024, LUATTN_DECODE_AUTO, "tiles 16 x", true},
      {"return attention {}", 1, 17, 1024, LUATTN_DECODE_AUTO, "tiles 32 x", true},
      {"return attention {}", 4, 4, 1024, LUATTN_DECODE_AUTO, "tiles 16 x 64", true},
      {"return attention {}", 4, 8, 1024, LUATTN_DECODE_AUTO, "tiles 32 x 64", true},
      {"return attention {}", 3, 11, 1024, LUATTN_DECODE_AUTO, "tiles 64 x 64", true},
      {"return attention {}", 4, 16, 1024, LUATTN_DECODE_AUTO, "tiles 32 x 128", true},
      {"return attention {}", 4, 16, 1024, LUATTN_DECODE_AUTO, "decode: ", true},
      {"return attention {}", 4, 4, 512, LUATTN_DECODE_AUTO, "decode: ", true},
      {"return attention {}", 4, 1, 8, LUATTN_DECODE_AUTO, "decode: ", true},
      {"return attention {}", 4, 16, 256, LUATTN_DECODE_AUTO, "tiles 64 x 64", false}, /* of 128 channels */
      {"return attention {}", 4, 512, 1024, LUATTN_DECODE_AUTO, "decode: ", false},
      {"return attention {}", 4, 4, 1024, LUATTN_DECODE_NEVER, "decode: ", false},
      {UNMERGED, 1, 1, 1024, LUATTN_DECODE_AUTO,
       "not the decode kernel: root: online_func 'root': parts of a row cannot be merged", true},
      {"return attention { online_func = dropout(0.5) }", 1, 1, 1024, LUATTN_DECODE_AUTO, "decode: ", true},
  };
  bool ok = true;
  for (size_t i = 0; i < sizeof choices / sizeof *choices; ++i) {
    const int dim = strstr(choices[i].plan, " x 64") != NULL ? 128 : 64;
    const shape_row s = {1, 1, choices[i].group, choices[i].q_len, choices[i].kv_len, dim, dim, 0};
    problem p;
    luattn_spec *spec;
    luattn_input input;
    const char *plan;
    need(luattn_spec_load_text("root", choices[i].text, strlen(choices[i].text), NULL, &spec, &err) == LUATTN_OK,
         "spec");
    open_problem(&p, &s, k);
    luattn_args args = args_of(&p, &cases[0], &input);
    args.decode = choices[i].decode;
    need(luattn_engine_plan(engine, spec, LUATTN_FORWARD, &args, &plan, &err) == LUATTN_OK, "plan");
    if ((strstr(plan, choices[i].plan) != NULL) != choices[i].is_there)
      ok = false, fprintf(stderr, "FAILED: choice %zu: %s\n", i, plan);
    char choice[500];
    need(luattn_engine_choice(engine, spec, LUATTN_FORWARD, &args, choice, sizeof choice, &err) == LUATTN_OK, "choice");
    const bool few = strncmp(choice, "choice: the kernel for few queries, as the faster one: predicted ", 64) == 0;
    if (few != (strncmp(plan, "decode: ", 8) == 0) || strchr(choice, '\n') != choice + strlen(choice) - 1)
      ok = false, fprintf(stderr, "FAILED: choice %zu: %sof %s\n", i, choice, plan);
    close_problem(&p);
    need(luattn_engine_forget(engine, spec, &err) == LUATTN_OK, "forget");
    luattn_spec_free(spec);
  }
  return ok;
}

/* The workspace for a kv head's keys of so many entries; tensors have no memory. */
static size_t workspace_of(luattn_engine *engine, const luattn_spec *spec, kind k, int batch, int kv_len, int splits) {
  size_t size;
  array like;
  make(&like, k, 4, (int64_t[]){1, 1, 1, 1});
  int64_t qs[] = {batch, 4, 1, 128}, ks[] = {batch, 1, kv_len, 128}, ls[] = {batch, 4, 1};
  DLTensor q = like.t, kv = like.t, lse = like.t;
  q.shape = qs, kv.shape = ks, lse.shape = ls, lse.ndim = 3, lse.dtype = (DLDataType){kDLFloat, 32, 1};
  q.data = kv.data = lse.data = NULL;
  const luattn_args args = {.struct_size = sizeof args,
                            .q = &q,
                            .k = &kv,
                            .v = &kv,
                            .o = &q,
                            .lse = &lse,
                            .num_splits = splits,
                            .decode = LUATTN_DECODE_ALWAYS};
  need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &size, &err) == LUATTN_OK, "workspace");
  drop(&like);
  return size;
}

/* Few blocks with long keys are split, many or short ones are not; each split has O and two row scalars and a flag of a
 * row. */
static bool splits_by_lengths(luattn_engine *engine, const luattn_spec *spec, kind k) {
  const size_t three = workspace_of(engine, spec, k, 1, 4096, 3), part = 4 * 4 * 128 * 3;
  const bool ok = workspace_of(engine, spec, k, 1, 65536, 0) > 4 * (part / 3) &&
                  workspace_of(engine, spec, k, 1, 64, 0) == 0 && workspace_of(engine, spec, k, 4096, 1024, 0) == 0 &&
                  workspace_of(engine, spec, k, 1, 65536, 1) == 0 && three >= part + 3 * 3 * 4 * 4 &&
                  three <= part + 1024;
  if (!ok)
    fprintf(stderr, "FAILED: splits: workspaces of %zu, %zu, %zu and %zu bytes\n",
            workspace_of(engine, spec, k, 1, 65536, 0), workspace_of(engine, spec, k, 1, 64, 0),
            workspace_of(engine, spec, k, 4096, 1024, 0), three);
  return ok;
}

int main(int argc, char **argv) {
  luattn_engine *engine;
  const kind k = argc > 1 && strcmp(argv[1], "f16") == 0 ? F16 : BF16;
  const bool few = argc > 2 && strcmp(argv[2], "few") == 0;
  const int only = argc > 2 && !few ? atoi(argv[2]) : -1;
  bool ok = refuses();
  need(luattn_engine_open(NULL, &engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  for (int i = 0; i < NUM_CASES; ++i) {
    if (only >= 0 && i != only) continue;
    luattn_spec *spec;
    need(luattn_spec_load_text(cases[i].name, cases[i].text, strlen(cases[i].text), NULL, &spec, &err) == LUATTN_OK,
         "spec");
    for (int j = 0; j < NUM_SHAPES; ++j)
      if (!few || (j == i % 3 && (i == 0 || i == 2 || i == 4 || i == 6)))
        ok = check(engine, spec, &cases[i], &shapes[j], k) && ok;
    const bool spills = strstr(cases[i].text, "dropout") != NULL; /* with these tiles */
    if (!spills && (!few || i == 4 || i == 5)) ok = tiles_of_64(spec, &cases[i], k, few) && ok;
    if (i == 0)
      ok = refuses_splits(engine, spec, k) && entries_alone(engine, spec, k) && splits_by_lengths(engine, spec, k) &&
           chooses(engine, k) && ok;
    need(luattn_engine_forget(engine, spec, &err) == LUATTN_OK, "forget");
    luattn_spec_free(spec);
  }
  luattn_engine_close(engine);
  if (ok) printf("decode %s: right\n", kind_name[k]);
  return !ok;
}
