/* lengths_test.c: compares forward, or both passes, with the CPU path at every length from 1 to 300, with
 * more tiles than a device runs at once, and with unusual strides, with NaN past every bound. Also repeats a
 * larger forward pass 100 times, which must agree in every bit.
 *
 * usage: gpu_lengths [--backward [--deterministic]] [--shard I/N] [--only SUBSTRING] [--skip] [--verbose]
 * --skip: tests specs whose scores decrease with distance, with tile skipping at every length. Prints a line
 * for each
 * failing case, and `N passed, N failed`. Exit: 0, 1, or 77 without a GPU or, with --skip, without one
 * of the sm90 family. */
#include <math.h>
#include <string.h>

#include "cli/check.h"
#include "tests/gpu/memory.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
enum { LONGEST = 300, REPEATS = 100 };
#define BLOCK_BYTES ((size_t)224 << 20)

/* Specs like the examples of the same names, with a window small enough that rows have keys before, inside
 * and after it, and rows without any. lines: two intervals per row, restricted to a remainder. rising,
 * falling: P of later keys exceeds P of earlier ones, or the reverse, by so much that rescaling cannot be
 * lazy; far: the same for distant keys, through a row shift. few, capped: P and QK^T that are small in some
 * tiles only. pairs, shifted: staged bias rows, at the key's own index and before it. */
static const struct {
  const char *name, *text;
} specs[] = {
    {"causal", "return attention { name = 'causal', block_mask = causal() }"},
    {"full", "return attention { name = 'full' }"},
    {"document",
     "return attention { name = 'document',\n"
     "  inputs = { doc_q = { axes = {'q'}, dtype = 'i32' }, doc_kv = { axes = {'kv'}, dtype = 'i32' } },\n"
     "  block_mask = function(b, h, q, kv) return eq(doc_q[q], doc_kv[kv]) and kv <= q end }"},
    {"sliding_window", "return attention { name = 'sliding_window', block_mask = sliding_window(69, 0) }"},
    {"neighborhood",
     "return attention { name = 'neighborhood', block_mask = neighborhood { size = {15, 20}, kernel = {3, 7} "
     "} }"},
    {"lines",
     "return attention { name = 'lines', block_mask = function(b, h, q, kv)\n"
     "  return (kv < 5 or abs(q - kv) <= 69) and eq((q - kv) % 3, 0) end }"},
    {"rising",
     "return attention { name = 'rising',\n"
     "  score_mod = function(s, b, h, q, kv) return s + 70.0 * (kv // 100) end }"},
    {"falling",
     "return attention { name = 'falling',\n"
     "  score_mod = function(s, b, h, q, kv) return s - 70.0 * (kv // 100) end }"},
    {"far",
     "return attention { name = 'far', block_mask = causal(),\n"
     "  score_mod = function(s, b, h, q, kv) return s + 0.7 * (q - kv) end }"},
    {"few",
     "return attention { name = 'few', block_mask = causal(), online_func = sigmoid_attention,\n"
     "  score_mod = function(s, b, h, q, kv) return s - 3.0 - 4.0 * (kv // 130 % 2) end }"},
    {"capped", "return attention { name = 'capped', block_mask = causal(), score_mod = softcap(10) }"},
    {"pairs",
     "return attention { name = 'pairs',\n"
     "  inputs = { t = { axes = {'h', 'q', 'kv'}, grad = true }, u = { axes = {'b', 'kv'}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, kv) return s + t[{h, q, kv}] + u[{b, kv}] end }"},
    {"shifted",
     "return attention { name = 'shifted', block_mask = causal(),\n"
     "  inputs = { t = { axes = {'b', 'q', 'kv'}, dtype = 'bf16' } },\n"
     "  score_mod = function(s, b, h, q, kv) return s + t[{b, q, kv - 5}] end }"},
};
static const char *const dtypes[] = {"bf16", "f16"};
/* At head dim 64 the plan has different tiles for short lengths with a mask. */
static const struct {
  int dim;
  luattn_lengths lengths;
} shapes[] = {{64, LUATTN_LONG}, {64, LUATTN_SHORT}, {128, LUATTN_LONG}, {256, LUATTN_LONG}};
/* Tile sizes that a plan may choose at these head dims, forward and backward. */
static const int tile_sizes[] = {64, 128, 32, 80, 96, 112, 192};
enum { BACKWARD_SIZES = 2 };
static const int heads_of[][3] = {{1, 2, 2}, {2, 4, 2}, {1, 6, 1}, {2, 3, 3}}; /* batch, heads, heads_kv */

/* Strides of q, k, v, o and lse, or only of k and v. With padding, NaN follows each position's channels, each
 * head's positions and each batch entry's heads. */
typedef enum test_layout {
  DENSE,
  HEADS_LAST,
  PADDED,
  PADDED_HEADS_LAST,
  SAME_BATCH,
  SAME_HEAD,
  SAME_BATCH_AND_HEAD,
  SAME_POSITION,
  REVERSED
} test_layout;
static const char *const layouts[] = {"dense",
                                      "heads last",
                                      "padded",
                                      "padded, heads last",
                                      "k, v broadcast over batch",
                                      "k, v broadcast over heads",
                                      "k, v broadcast over batch and heads",
                                      "k, v broadcast over positions",
                                      "k, v reversed"};

typedef struct test_case {
  int spec, dtype, dim, batch, heads, heads_kv, q_len, kv_len, number;
  test_layout layout;
  luattn_lengths lengths; /* the class of lengths whose tiles are used */
  bool repeated;
} test_case;

typedef struct suite {
  luattn_engine *engine[2]; /* one per class of lengths */
  luattn_spec *spec[COUNT(specs)];
  memory memory;
  const char *only;
  int shard, shards, next, passed, failed;
  double cost, all_cost; /* cost so far; cost of all cases, 0 until known */
  bool verbose, broken, skip, backward, deterministic;
} suite;

/* ---- one case ---- */

/* Strides of extra inputs: one or eight elements of padding after each row, or one after each element. */
static bool input_strides(int layout, const DLTensor *like, int64_t *stride) {
  static const int64_t behind[] = {[HEADS_LAST] = 1, [PADDED] = 8, [PADDED_HEADS_LAST] = 1};
  if (layout == DENSE || layout > PADDED_HEADS_LAST) return false;
  int64_t step = layout == PADDED_HEADS_LAST ? 2 : 1;
  for (int i = like->ndim - 1; i >= 0; i--) {
    stride[i] = step;
    step = step * like->shape[i] + behind[layout];
  }
  return true;
}

static bool strides_of(int layout, int slot, const DLTensor *like, int64_t *stride) {
  if (slot >= CALL_INPUT) return input_strides(layout, like, stride);
  const int64_t *n = like->shape;
  const bool last = layout == PADDED_HEADS_LAST;
  const bool both = slot == CALL_K || slot == CALL_V;
  if (slot == CALL_SAVED || slot == CALL_SCALAR_GRADS) return false;
  if (slot == CALL_LSE || slot == CALL_DLSE) {
    if (layout != PADDED && !last) return false;
    stride[2] = last ? 2 * n[1] + 1 : 3;
    stride[1] = last ? 2 : n[2] * 3 + 1;
    stride[0] = n[1] * n[2] * 6 + 1;
    return true;
  }
  if (layout == DENSE || (layout > PADDED_HEADS_LAST && !both)) return false;
  const int64_t pad = layout == PADDED || last ? 1 : 0, row = n[3] + 8 * pad;
  const bool heads_last = last || layout == HEADS_LAST;
  stride[3] = 1;
  stride[heads_last ? 1 : 2] = row;
  stride[heads_last ? 2 : 1] = (n[heads_last ? 1 : 2] + 3 * pad) * row;
  stride[0] = (n[heads_last ? 2 : 1] + pad) * stride[heads_last ? 2 : 1];
  if (layout == SAME_BATCH || layout == SAME_BATCH_AND_HEAD) stride[0] = 0;
  if (layout == SAME_HEAD || layout == SAME_BATCH_AND_HEAD) stride[1] = 0;
  if (layout == SAME_POSITION) stride[2] = 0;
  if (layout == REVERSED) stride[2] = -stride[2];
  return true;
}

/* A layout that no TMA descriptor can represent must be refused by name. All other layouts must work, and in
 * other families this one too. */
static bool is_refusal(const test_case *t, luattn_status status, const luattn_error *err) {
  const bool unusual = t->layout == REVERSED || t->layout == SAME_POSITION;
  return unusual && status == LUATTN_INVALID && strstr(err->message, "k: ") != NULL &&
         strstr(err->message, "TMA") != NULL;
}

static luattn_status check_finite(const cli_result *r, luattn_error *err) {
  for (int64_t i = 0, n = array_count(&r->o); i < n; i++)
    if (!isfinite(array_get(&r->o, i)))
      return luattn_fail(err, LUATTN_INTERNAL, "o: element %lld is not finite", (long long)i);
  return LUATTN_OK;
}

/* Launches again; results must equal those of the first launch, which are on the host, in every bit. */
static luattn_status repeat(suite *s, const test_case *t, const call *c, luattn_error *err) {
  luattn_driver *driver = luattn_engine_driver(s->engine[t->lengths]);
  memory *m = &s->memory;
  static const int outputs[] = {CALL_O, CALL_LSE};
  for (int i = 1; i < REPEATS; i++) {
    for (int j = 0; j < COUNT(outputs); j++) {
      const placed *x = &c->slot[outputs[j]];
      if (c->host[outputs[j]] == NULL) continue; /* no lse */
      TRY(luattn_device_fill(driver, 0, m->device + x->first, 0xff, x->bytes, NULL, err));
    }
    TRY(luattn_forward(s->engine[t->lengths], s->spec[t->spec], &c->args, NULL, err));
    for (int j = 0; j < COUNT(outputs); j++) {
      const placed *x = &c->slot[outputs[j]];
      if (c->host[outputs[j]] == NULL) continue; /* no lse */
      TRY(luattn_copy_to_host(driver, 0, m->after + x->first, m->device + x->first, x->bytes, err));
      if (memcmp(m->after + x->first, c->host[outputs[j]]->data, x->bytes) != 0)
        return luattn_fail(err, LUATTN_INTERNAL, "launch %d gave other bytes in %s than the first", i,
                           j == 0 ? "o" : "lse");
    }
  }
  return LUATTN_OK;
}

static luattn_status run_placed(suite *s, const test_case *t, const cli_problem *p, cli_result *r, call *c,
                                check_report *report, luattn_error *err) {
  memory *m = &s->memory;
  luattn_engine *engine = s->engine[t->lengths];
  memory_clear(m);
  TRY(call_place(m, p, r, s->backward, strides_of, (int)t->layout, c, err));
  luattn_args backward = c->args;
  call_write(m, c);
  TRY(call_workspace(m, engine, p->spec, LUATTN_FORWARD, &c->args, err));
  if (s->backward) TRY(call_workspace(m, engine, p->spec, LUATTN_BACKWARD, &backward, err));
  TRY(memory_upload(m, err));
  luattn_status status = luattn_forward(engine, p->spec, &c->args, NULL, err);
  if (status == LUATTN_OK && s->backward) status = luattn_backward(engine, p->spec, &backward, NULL, err);
  if (is_refusal(t, status, err)) return LUATTN_OK;
  TRY(status);
  TRY(memory_download(m, err));
  call_read(m, c);
  TRY(memory_unchanged(m, err));
  if (!t->repeated) return check_results(p, r, s->backward, report, err);
  TRY(check_finite(r, err)); /* too large for the CPU path */
  return repeat(s, t, c, err);
}

static luattn_status run_case(suite *s, const test_case *t, check_report *report, luattn_error *err) {
  char shape[96];
  cli_problem p;
  cli_result r;
  call c;
  snprintf(shape, sizeof shape, "%d,%d,%d,%d,%d,%d", t->batch, t->heads, t->heads_kv, t->q_len, t->kv_len, t->dim);
  const cli_options o = {
      .dtype = dtypes[t->dtype], .shape = shape, .seed = 1 + t->number, .skip = s->skip ? "always" : NULL};
  luattn_spec **spec = &s->spec[t->spec];
  if (*spec == NULL)
    TRY(luattn_spec_load_text(specs[t->spec].name, specs[t->spec].text, strlen(specs[t->spec].text), NULL, spec, err));
  TRY(problem_read(*spec, &o, s->backward, &p, err));
  luattn_status status = result_new(&p, dtype_dl(p.dtype), dtype_dl(LUATTN_F32), s->backward, &r, err);
  if (status == LUATTN_OK) {
    status = run_placed(s, t, &p, &r, &c, report, err);
    result_free(&r);
  }
  problem_free(&p);
  return status;
}

/* ---- the cases ---- */

/* Returns the cost of a case in multiply-adds of the CPU path, which takes most of the time. */
static double cost_of(const test_case *t) {
  const double launch = 4e6, scores = (double)t->batch * t->heads * t->q_len * t->kv_len;
  return t->repeated ? 1e9 : launch + scores * t->dim * (t->spec == 1 ? 1 : 0.6);
}

/* Called twice per case: first to sum all costs, then to run the cases of this shard. A shard's cases are
 * consecutive, so that it compiles few kernels. */
static void visit(suite *s, test_case t) {
  char title[256];
  check_report report = {0};
  luattn_error err;
  t.number = s->next++;
  snprintf(title, sizeof title, "%s %s %d,%d,%d,%d,%d,%d %s%s%s", specs[t.spec].name, dtypes[t.dtype], t.batch, t.heads,
           t.heads_kv, t.q_len, t.kv_len, t.dim, layouts[t.layout], t.lengths == LUATTN_SHORT ? ", short tiles" : "",
           t.repeated ? ", repeated" : "");
  if (s->only != NULL && strstr(title, s->only) == NULL) return;
  s->cost += cost_of(&t);
  if (s->all_cost == 0 || s->broken) return;
  const int shard = (int)((s->cost - cost_of(&t) / 2) / s->all_cost * s->shards);
  if (shard != s->shard) return;
  const luattn_status status = run_case(s, &t, &report, &err);
  const bool failed = status != LUATTN_OK || report.failed > 0;
  s->failed += failed, s->passed += !failed;
  if (status != LUATTN_OK)
    printf("%s\n  %s\n", title, err.message);
  else if (failed || s->verbose)
    check_print(title, &report);
  s->broken = status == LUATTN_CUDA; /* after a fault every call fails */
  fflush(stdout);
}

/* Returns whether the last tile is full, lacks one position, or has only one. */
static bool is_edge(const suite *s, int n) {
  if (n <= 17 || n == LONGEST) return true;
  for (int i = 0; i < (s->backward ? BACKWARD_SIZES : COUNT(tile_sizes)); i++) {
    const int rest = n % tile_sizes[i];
    if (rest <= 1 || rest == tile_sizes[i] - 1) return true;
  }
  return false;
}

static test_case with_heads(test_case t, int i) {
  t.batch = heads_of[i % COUNT(heads_of)][0];
  t.heads = heads_of[i % COUNT(heads_of)][1];
  t.heads_kv = heads_of[i % COUNT(heads_of)][2];
  return t;
}

/* With very few scores a plain result may be nearly exact by chance, which makes the tolerance very small. So
 * such cases get more batch entries (as in sweep_test.c). */
static test_case with_enough(const suite *s, test_case t) {
  if (s->backward && t.q_len * t.kv_len <= 64) t.batch *= 16;
  return t;
}

/* q_len = kv_len: all lengths for `causal` at head dim 128. Otherwise the edge lengths, and each other length
 * in one configuration. */
static void equal_lengths(suite *s, test_case t, int configuration, int configurations) {
  const bool all = t.spec == 0 && t.dim == 128;
  for (int n = 1; n <= LONGEST; n++) {
    if (!all && !is_edge(s, n) && n % configurations != configuration) continue;
    t = with_heads(t, n);
    t.q_len = t.kv_len = n;
    t.layout = (test_layout)((n + n / 4 + configuration) % 4);
    visit(s, with_enough(s, t));
  }
}

/* Pairs every edge length with another one. */
static void unequal_lengths(suite *s, test_case t, int configuration) {
  int edge[LONGEST], count = 0;
  for (int n = 1; n <= LONGEST; n++)
    if (is_edge(s, n)) edge[count++] = n;
  for (int i = 0; i < count; i++) {
    t = with_heads(t, i + configuration);
    t.q_len = edge[i];
    t.kv_len = edge[(i * 37 + 11 * configuration + 5) % count];
    t.layout = (test_layout)((i + i / 4) % 4);
    visit(s, with_enough(s, t));
  }
}

/* Uses more tiles than multiprocessors, so that blocks process several, some without any key. */
static void many_tiles(suite *s, test_case t) {
  static const int sizes[][5] = {
      {2, 96, 12, 1, 300}, {2, 96, 96, 65, 130}, {2, 96, 12, 130, 17}, {1, 80, 8, 200, 140}, {3, 64, 64, 150, 3}};
  for (int i = 0; i < COUNT(sizes); i++) {
    t.batch = sizes[i][0], t.heads = sizes[i][1], t.heads_kv = sizes[i][2];
    t.q_len = sizes[i][3], t.kv_len = sizes[i][4];
    t.layout = (test_layout)(i % 4);
    visit(s, t);
  }
}

static void unusual_strides(suite *s, test_case t) {
  t.batch = 2, t.heads = 4, t.heads_kv = 2;
  t.q_len = 150, t.kv_len = 170;
  for (int i = SAME_BATCH; i <= REVERSED; i++) {
    t.layout = (test_layout)i;
    visit(s, t);
  }
}

static void each_case(suite *s) {
  const int configurations = COUNT(specs) * COUNT(dtypes) * COUNT(shapes);
  s->next = 0;
  for (int i = 0; i < configurations; i++) {
    const test_case t = {.spec = i / (COUNT(dtypes) * COUNT(shapes)),
                         .dtype = i / COUNT(shapes) % COUNT(dtypes),
                         .dim = shapes[i % COUNT(shapes)].dim,
                         .lengths = shapes[i % COUNT(shapes)].lengths};
    const char *const name = specs[t.spec].name;
    const bool steep = strcmp(name, "rising") == 0 || strcmp(name, "falling") == 0, far = strcmp(name, "far") == 0;
    if (s->skip && !steep && !far) continue;
    if (s->backward && !s->skip && (steep || far)) continue; /* backward treats these like others */
    if (t.lengths == LUATTN_SHORT && (steep || strcmp(name, "full") == 0)) continue; /* has no other tiles */
    if (!steep && !far) equal_lengths(s, t, i, configurations);
    unequal_lengths(s, t, i);
    many_tiles(s, t);
    unusual_strides(s, t);
    if (s->backward) continue; /* gpu_deterministic repeats backward */
    test_case large = t;
    large.batch = 2, large.heads = 18, large.heads_kv = 6, large.q_len = large.kv_len = 1111, large.repeated = true;
    visit(s, large);
  }
}

static void close_engines(suite *s) {
  for (int i = 0; i < 2; i++) luattn_engine_close(s->engine[i]);
}

/* Returns whether the device has the family that supports tile skipping. */
static bool can_skip(suite *s, luattn_error *err) {
  luattn_device_info info;
  if (luattn_device_get_info(luattn_engine_driver(s->engine[0]), 0, &info, err) != LUATTN_OK) return false;
  if (info.arch != 90) (void)luattn_fail(err, LUATTN_UNSUPPORTED, "--skip is for the sm90 family");
  return info.arch == 90;
}

/* Uses the plan's own tiles, not those tuned on this machine. */
static luattn_status open_engines(suite *s, luattn_error *err) {
  for (int i = 0; i < 2; i++) {
    const luattn_engine_options options = {
        .struct_size = sizeof options, .no_tuned = 1, .lengths = 1 + i, .deterministic = s->deterministic};
    const luattn_status status = luattn_engine_open(&options, &s->engine[i], err);
    if (status != LUATTN_OK) return close_engines(s), status;
  }
  return LUATTN_OK;
}

static int run_all(suite *s) {
  each_case(s);
  s->all_cost = s->cost;
  s->cost = 0;
  if (s->all_cost > 0) each_case(s);
  printf("%d passed, %d failed%s\n", s->passed, s->failed, s->broken ? "; stopped at the first fault" : "");
  return s->failed > 0 || s->passed == 0;
}

int main(int argc, char **argv) {
  suite s = {.shards = 1};
  luattn_error err;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--verbose") == 0)
      s.verbose = true;
    else if (strcmp(argv[i], "--skip") == 0)
      s.skip = true;
    else if (strcmp(argv[i], "--backward") == 0)
      s.backward = true;
    else if (strcmp(argv[i], "--deterministic") == 0)
      s.deterministic = true;
    else if (i + 1 < argc && strcmp(argv[i], "--only") == 0)
      s.only = argv[++i];
    else if (i + 1 < argc && strcmp(argv[i], "--shard") == 0) {
      if (sscanf(argv[++i], "%d/%d", &s.shard, &s.shards) != 2 || s.shards < 1) return 2;
    } else
      return 2;
  }
  if (open_engines(&s, &err) != LUATTN_OK) {
    printf("skipped: %s\n", err.message);
    return 77;
  }
  if (s.skip && !can_skip(&s, &err)) {
    printf("skipped: %s\n", err.message);
    close_engines(&s);
    return 77;
  }
  int code = 1;
  if (memory_open(luattn_engine_driver(s.engine[0]), BLOCK_BYTES, &s.memory, &err) == LUATTN_OK)
    code = run_all(&s);
  else
    printf("%s\n", err.message);
  memory_close(&s.memory);
  close_engines(&s);
  for (int i = 0; i < COUNT(specs); i++) luattn_spec_free(s.spec[i]);
  return code;
}
