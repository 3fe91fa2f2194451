/* linear_forward_test.c: luattn_linear_forward by kernels of specs, on the PTX machine or a GPU, beside the CPU path: o and
 * final states within twice what a chunked kernel in bf16 is off by (tests/ptx/linear_bars.h).
 *
 * linear_forward_test SPECS CASE, SPECS being the folder of specs of linear attention
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/linear.h"
#include "tests/ptx/arrays.h"
#include "tests/ptx/linear_bars.h"

enum { MOST = 8, INPUTS = 12, NOBODY = 9 };
/* Of keys as they are. */
#define DELTA_RULE(axes, args, at)                                                              \
  "return linear_attention { name = 'delta_rule', inputs = { g = { axes = {'b', 't', 'hv'" axes \
  "} }, beta = { axes = {'b', 't', 'hv'} } }, decay = function(" args ") return g[{" at         \
  "}] end, update = "                                                                           \
  "delta_rule(function(b, h, t) return sigmoid(beta[{b, t, h}]) end) }"
static const char delta_rule[] = DELTA_RULE("", "b, h, t", "b, t, h"),
                  channel_delta_rule[] = DELTA_RULE(", 'd'", "b, h, t, d", "b, t, h, d");

typedef struct test_row {
  const char *name, *spec; /* spec NULL: of this file */
  kind k;
  int heads, heads_v, k_dim, v_dim;
  int entries, tokens[MOST]; /* not packed: the first is of all */
  bool packed, no_states, kv, erases;
  bool channels;  /* decays differ between these */
  int pool[MOST]; /* 1 more than an entry's row; negative: none; all 0: there are no indices */
  size_t segments;
  bool makes_rows;
} test_row;

#define TOKENS(...) .tokens = {__VA_ARGS__}
#define SIZES(type, h, hv, K, V, n) .k = type, .heads = h, .heads_v = hv, .k_dim = K, .v_dim = V, .entries = n
static const test_row rows[] = {
    {.name = "retention", .spec = "retention", SIZES(BF16, 2, 2, 64, 64, 2), TOKENS(140)},
    {.name = "retention_packed",
     .spec = "retention",
     SIZES(F16, 1, 2, 128, 128, 5),
     TOKENS(0, 65, 3, 130, 1),
     .packed = true,
     .kv = true},
    {.name = "simple_gla", .spec = "simple_gla", SIZES(BF16, 1, 2, 128, 64, 1), TOKENS(65), .kv = true},
    {.name = "simple_gla_packed",
     .spec = "simple_gla",
     SIZES(BF16, 2, 4, 64, 128, 6),
     TOKENS(0, 65, 3, 64, 70, 1),
     .packed = true,
     .pool = {3, 8, 1, 4, -1, 2}},
    {.name = "simple_gla_long", .spec = "simple_gla", SIZES(BF16, 1, 1, 64, 64, 1), TOKENS(2100), .segments = 2},
    {.name = "simple_gla_empty", .spec = "simple_gla", SIZES(BF16, 1, 1, 64, 64, 2), TOKENS(0)},
    {.name = "mamba2", .spec = "mamba2", SIZES(BF16, 1, 3, 128, 64, 2), TOKENS(130)},
    {.name = "mamba2_packed",
     .spec = "mamba2",
     SIZES(F16, 1, 2, 16, 24, 4),
     TOKENS(64, 0, 100, 2),
     .packed = true,
     .no_states = true},
    {.name = "delta_rule", SIZES(BF16, 1, 2, 64, 64, 1), TOKENS(140), .erases = true},
    {.name = "delta_rule_long", SIZES(BF16, 1, 1, 64, 64, 1), TOKENS(3100), .erases = true, .segments = 3},
    {.name = "delta_rule_packed",
     SIZES(BF16, 1, 1, 128, 128, 3),
     TOKENS(65, 0, 70),
     .packed = true,
     .kv = true,
     .erases = true},
    {.name = "channel_delta_rule",
     SIZES(BF16, 1, 2, 128, 128, 2),
     TOKENS(130),
     .kv = true,
     .erases = true,
     .channels = true},
    {.name = "gla", .spec = "gla", SIZES(BF16, 1, 2, 128, 128, 1), TOKENS(140), .channels = true},
    {.name = "gla_packed",
     .spec = "gla",
     SIZES(F16, 2, 2, 40, 72, 4),
     TOKENS(65, 0, 130, 1),
     .packed = true,
     .kv = true,
     .channels = true},
    {.name = "gated_delta",
     .spec = "gated_delta",
     SIZES(BF16, 1, 2, 128, 64, 1),
     TOKENS(100),
     .erases = true,
     .makes_rows = true},
    {.name = "delta_packed",
     .spec = "delta",
     SIZES(BF16, 2, 2, 72, 128, 4),
     TOKENS(65, 0, 3, 70),
     .packed = true,
     .kv = true,
     .erases = true,
     .makes_rows = true},
    {.name = "mamba2_ae", .spec = "mamba2_ae", SIZES(BF16, 1, 2, 64, 128, 1), TOKENS(100)}};

typedef struct problem {
  const test_row *row;
  luattn_engine *engine;
  luattn_spec *spec;
  int total; /* rows of tokens of a batch entry */
  array q, k, v, o, want, first, last, want_last, cu, indices, of[INPUTS];
  luattn_input input[INPUTS];
  size_t num_inputs;
} problem;

static void refuse(const char *what, double x, double most) {
  fprintf(stderr, "%s is off by %g, expected at most %g\n", what, x, most);
  exit(1);
}

static void draw(array *a, double size) {
  for (size_t i = 0; i < a->count; i++) put(a->k, a->host, i, size * drawn());
  send(a);
}

/* Of each axis of the input; gates are weak. */
static void make_input(problem *p, size_t i, const luattn_input_info *info) {
  const test_row *r = p->row;
  int64_t shape[4];
  bool has_tokens = false;
  for (uint32_t j = 0; j < info->num_axes; j++) has_tokens |= info->axis[j] == LUATTN_AXIS_T;
  for (uint32_t j = 0; j < info->num_axes; j++) {
    const int32_t axis = info->axis[j];
    shape[j] = axis == LUATTN_AXIS_B    ? (r->packed && has_tokens ? 1 : r->entries)
               : axis == LUATTN_AXIS_T  ? p->total
               : axis == LUATTN_AXIS_H  ? r->heads
               : axis == LUATTN_AXIS_HV ? r->heads_v
               : axis == LUATTN_AXIS_D  ? r->k_dim
               : axis == LUATTN_AXIS_DV ? r->v_dim
                                        : axis;
  }
  array *a = &p->of[i];
  make(a, F32, (int)info->num_axes, shape);
  draw(a, 1);
  const bool is_gate = strcmp(info->name, "g") == 0 || strcmp(info->name, "A") == 0;
  for (size_t n = 0; is_gate && n < a->count; n++) put(F32, a->host, n, (get(F32, a->host, n) - 1) / 16);
  send(a);
  p->input[i] = (luattn_input){.name = info->name, .tensor = &a->t};
}

static void make_tokens(problem *p) {
  const test_row *r = p->row;
  const int64_t batch = r->packed ? 1 : r->entries;
  const int64_t qk[] = {batch, p->total, r->heads, r->k_dim}, of_v[] = {batch, p->total, r->heads_v, r->v_dim};
  make(&p->q, r->k, 4, qk), make(&p->k, r->k, 4, qk), make(&p->v, r->k, 4, of_v), make(&p->o, r->k, 4, of_v);
  make(&p->want, F64, 4, of_v);
  draw(&p->q, 1 / sqrt(r->k_dim)), draw(&p->k, 1 / sqrt(r->k_dim)), draw(&p->v, 1);
  fill(&p->o, (double)NAN), fill(&p->want, (double)NAN);
  if (!r->packed) return;
  int32_t at = 0;
  make(&p->cu, I32, 1, (const int64_t[]){r->entries + 1});
  for (int e = 0; e < r->entries; e++) put(I32, p->cu.host, (size_t)e + 1, at += r->tokens[e]);
  send(&p->cu);
  array *const of[] = {&p->q, &p->k, &p->v}; /* rows of nobody */
  for (int i = 0; i < 3; i++) {
    const size_t width = of[i]->count / (size_t)p->total;
    for (size_t n = (size_t)at * width; n < of[i]->count; n++) put(r->k, of[i]->host, n, (double)NAN);
    send(of[i]);
  }
}

static void make_states(problem *p) {
  const test_row *r = p->row;
  const int64_t rows_of = r->pool[0] != 0 ? NOBODY : r->entries;
  const int64_t shape[] = {rows_of, r->heads_v, r->kv ? r->k_dim : r->v_dim, r->kv ? r->v_dim : r->k_dim};
  make(&p->first, F32, 4, shape), make(&p->last, F32, 4, shape), make(&p->want_last, F64, 4, shape);
  draw(&p->first, 0.2);
  fill(&p->last, 7), fill(&p->want_last, 7);
  if (r->pool[0] == 0) return;
  make(&p->indices, I32, 1, (const int64_t[]){r->entries});
  for (int e = 0; e < r->entries; e++) put(I32, p->indices.host, (size_t)e, r->pool[e] < 0 ? -1 : r->pool[e] - 1);
  send(&p->indices);
}

static luattn_linear_args args_of(problem *p) {
  const test_row *r = p->row;
  luattn_linear_args a = {.struct_size = sizeof a,
                          .q = &p->q.t,
                          .k = &p->k.t,
                          .v = &p->v.t,
                          .o = &p->o.t,
                          .inputs = p->input,
                          .num_inputs = p->num_inputs,
                          .state_layout = r->kv ? LUATTN_STATE_KV : LUATTN_STATE_VK};
  if (r->packed) a.cu_seqlens = &p->cu.t;
  if (!r->no_states) a.initial_state = &p->first.t, a.final_state = &p->last.t;
  if (r->pool[0] != 0 && !r->no_states) a.state_indices = &p->indices.t;
  return a;
}

static DLTensor on_host(const array *a) {
  DLTensor t = a->t;
  t.data = a->host, t.device = (DLDevice){kDLCPU, 0}, t.shape = (int64_t *)a->shape;
  return t;
}

static void run_on_cpu(problem *p) {
  DLTensor q = on_host(&p->q), k = on_host(&p->k), v = on_host(&p->v), o = on_host(&p->want),
           first = on_host(&p->first), last = on_host(&p->want_last), cu = on_host(&p->cu),
           indices = on_host(&p->indices), of[INPUTS];
  luattn_linear_args a = args_of(p);
  luattn_input inputs[INPUTS];
  a.q = &q, a.k = &k, a.v = &v, a.o = &o, a.inputs = inputs;
  if (a.cu_seqlens != NULL) a.cu_seqlens = &cu;
  if (a.initial_state != NULL) a.initial_state = &first, a.final_state = &last;
  if (a.state_indices != NULL) a.state_indices = &indices;
  for (size_t i = 0; i < p->num_inputs; i++) {
    of[i] = on_host(&p->of[i]);
    inputs[i] = (luattn_input){.name = p->input[i].name, .tensor = &of[i]};
  }
  need(luattn_cpu_linear_forward(p->spec, &a, &err) == LUATTN_OK, "on the CPU");
}

/* Whether one kernel computes all of the call, unless it keeps something for backward. */
static bool is_whole(const test_row *r) { return r->erases && !r->channels && r->segments <= 1 && r->v_dim <= 128; }

static double distance(kind k, const void *a, const void *b, size_t count) {
  double off = 0, size = 0;
  for (size_t i = 0; i < count; i++) {
    const double x = get(k, a, i), y = get(k, b, i);
    if (isnan(x) && isnan(y)) continue; /* nobody's */
    off += isnan(x) || isnan(y) ? (double)INFINITY : (x - y) * (x - y), size += y * y;
  }
  return off == 0 ? 0 : sqrt(off / size);
}

/* The same bits of o where forward keeps states for backward by the same kernel, or else no more than roundings apart. */
static void run_keeping(problem *p, const luattn_linear_args *args, bool keeps) {
  luattn_linear_args a = *args;
  need(luattn_linear_kept_size(p->engine, p->spec, &a, &a.kept_size, &err) == LUATTN_OK, "what is kept");
  if (!keeps) need(a.kept_size == 0, "nothing is kept");
  if (a.kept_size == 0) return;
  const size_t size = a.kept_size, bytes = p->o.count * sizeof(uint16_t);
  char *o = malloc(bytes + 1);
  memcpy(o, p->o.host, bytes);
  need(luattn_device_alloc(driver, 0, size, &a.kept, &err) == LUATTN_OK, "alloc");
  a.kept_size = size - 1;
  if (luattn_linear_forward(p->engine, p->spec, &a, NULL, &err) != LUATTN_INVALID ||
      strstr(err.message, "bytes, expected") == NULL)
    need(false, "too little memory for what is kept");
  a.kept_size = size;
  void *const room = a.kept;
  a.kept = a.q->data;
  if (luattn_linear_forward(p->engine, p->spec, &a, NULL, &err) != LUATTN_INVALID ||
      strstr(err.message, "kept: its memory, ") == NULL ||
      strstr(err.message, "is shared with ") == NULL) /* q, or what lies behind it, which is in its way too */
    need(false, "memory of q for what is kept");
  a.kept = room;
  need(luattn_linear_forward(p->engine, p->spec, &a, NULL, &err) == LUATTN_OK, "forward that keeps");
  fetch(&p->o);
  if (!is_whole(p->row)) need(memcmp(o, p->o.host, bytes) == 0, "the same bits of o");
  need(distance(p->o.k, o, p->o.host, p->o.count) < 0.004, "o of both kernels");
  memcpy(p->o.host, o, bytes);
  need(luattn_device_free(driver, 0, a.kept, &err) == LUATTN_OK, "free");
  free(o);
}

static void run_on_device(problem *p) {
  luattn_linear_args a = args_of(p);
  need(luattn_linear_workspace_size(p->engine, p->spec, &a, &a.workspace_size, &err) == LUATTN_OK, "workspace");
  const bool has_inverses = p->row->erases && !p->row->channels;
  /* inverses of all chunks, or with decays of channels their tiles, unless one kernel has these */
  const bool by_quarters = p->row->channels && p->row->k == BF16 && p->row->k_dim > 64 && p->row->v_dim > 64,
             is_prepared = p->row->erases && !by_quarters && !is_whole(p->row);
  if ((a.workspace_size > 0) != (p->row->segments > 1 || p->row->makes_rows || is_prepared) && is_small_device()) {
    fprintf(stderr, "the workspace has %zu bytes\n", a.workspace_size);
    exit(1);
  }
  if (a.workspace_size > 0) {
    const size_t size = a.workspace_size;
    a.workspace_size = 16;
    if (luattn_linear_forward(p->engine, p->spec, &a, NULL, &err) != LUATTN_INVALID ||
        strstr(err.message, "workspace: has 0 bytes") == NULL)
      need(false, "a missing workspace");
    a.workspace_size = size;
    need(luattn_device_alloc(driver, 0, size, &a.workspace, &err) == LUATTN_OK, "alloc");
  }
  need(luattn_linear_forward(p->engine, p->spec, &a, NULL, &err) == LUATTN_OK, "forward");
  fetch(&p->o), fetch(&p->last);
  run_keeping(p, &a, has_inverses);
  if (a.workspace_size > 0) need(luattn_device_free(driver, 0, a.workspace, &err) == LUATTN_OK, "free");
}

/* What was not to be written is as it was. */
static void compare(const char *what, const array *got, const array *want, double most, double untouched) {
  double off = 0, size = 0;
  for (size_t i = 0; i < got->count; i++) {
    const double x = get(got->k, got->host, i), y = get(F64, want->host, i);
    if (isnan(y) || y == untouched) {
      if (!(isnan(y) ? isnan(x) : x == y)) refuse(what, x, 0);
      continue;
    }
    off += isnan(x) ? (double)INFINITY : (x - y) * (x - y), size += y * y;
  }
  const double relative = off == 0 ? 0 : sqrt(off / size);
  if (getenv("LINEAR_TEST_PRINTS")) printf("%s: %.2e\n", what, relative);
  if (!(relative <= most)) refuse(what, relative, most);
}

static void run(luattn_engine *engine, const char *specs, const test_row *r) {
  char path[512];
  luattn_spec_info info;
  problem p = {.row = r, .engine = engine, .total = r->packed ? NOBODY : r->tokens[0]};
  const char *text = r->channels ? channel_delta_rule : delta_rule;
  for (int e = 0; r->packed && e < r->entries; e++) p.total += r->tokens[e];
  if (r->spec == NULL)
    need(luattn_spec_load_text(r->name, text, strlen(text), NULL, &p.spec, &err) == LUATTN_OK, r->name);
  if (r->spec != NULL) {
    snprintf(path, sizeof path, "%s/%s.lua", specs, r->spec);
    need(luattn_spec_load(path, NULL, &p.spec, &err) == LUATTN_OK, path);
  }
  luattn_spec_get_info(p.spec, &info);
  p.num_inputs = info.num_inputs;
  make_tokens(&p), make_states(&p);
  for (size_t i = 0; i < p.num_inputs; i++) make_input(&p, i, &info.inputs[i]);
  run_on_cpu(&p);
  run_on_device(&p);
  compare("o", &p.o, &p.want, linear_most_o(r->erases, r->channels), (double)NAN);
  if (!r->no_states) compare("the final state", &p.last, &p.want_last, linear_most_state(r->erases), 7);
  need(luattn_engine_forget(engine, p.spec, &err) == LUATTN_OK, "forget");
  array *const all[] = {&p.q, &p.k, &p.v, &p.o, &p.want, &p.first, &p.last, &p.want_last};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(all[i]);
  for (size_t i = 0; i < p.num_inputs; i++) drop(&p.of[i]);
  if (r->packed) drop(&p.cu);
  if (r->pool[0] != 0) drop(&p.indices);
  luattn_spec_free(p.spec);
}

/* Calls that no kernel takes, and words of their messages. */
static void expect_words(luattn_status status, const char *words) {
  if (status != LUATTN_OK && strstr(err.message, words) != NULL) return;
  fprintf(stderr, "expected '%s', got '%s'\n", words, err.message);
  exit(1);
}
static void expect_refusal(problem *p, const luattn_linear_args *a, const char *words) {
  expect_words(luattn_linear_forward(p->engine, p->spec, a, NULL, &err), words);
}

/* With LUATTN_CHECK=1 rows of the pool, which kernels trust. */
static void check_lists(problem *p) {
  luattn_linear_args a = args_of(p);
  make(&p->indices, I32, 1, (const int64_t[]){1});
  a.state_indices = &p->indices.t;
  setenv("LUATTN_CHECK", "1", 1);
  fill(&p->indices, 1);
  expect_refusal(p, &a, "state_indices: number 0 is 1, and the pool has 1 rows");
  fill(&p->indices, -2);
  expect_refusal(p, &a, "state_indices: number 0 is -2");
  fill(&p->indices, 0);
  need(luattn_linear_forward(p->engine, p->spec, &a, NULL, &err) == LUATTN_OK, "a row that there is");
  make(&p->cu, I32, 1, (const int64_t[]){2});
  a = args_of(p), a.cu_seqlens = &p->cu.t;
  put(I32, p->cu.host, 0, 3), put(I32, p->cu.host, 1, 2);
  send(&p->cu);
  expect_refusal(p, &a, "cu_seqlens: number 1 is 2, expected 3 to 64, the rows of q");
  unsetenv("LUATTN_CHECK");
}

/* States that are updated in place are the same elements, and backward needs what they were. */
static void check_places(problem *p) {
  luattn_linear_args a = args_of(p);
  DLTensor turned = p->first.t, in_half = p->first.t;
  int64_t steps[] = {0, 64 * 64, 1, 64};
  turned.strides = steps, in_half.dtype = p->v.t.dtype;
  a.final_state = &turned;
  expect_refusal(p, &a, "is shared with initial_state");
  a.final_state = &in_half;
  expect_refusal(p, &a, "is shared with initial_state");
  a.o = NULL, a.dout = &p->v.t, a.dq = &p->o.t, a.final_state = a.initial_state;
  expect_words(luattn_linear_backward(p->engine, p->spec, &a, NULL, &err), "initial_state: is final_state");
  make(&p->indices, I32, 1, (const int64_t[]){1});
  fill(&p->indices, 1);
  setenv("LUATTN_CHECK", "1", 1);
  a.initial_state = a.final_state = NULL, a.dinitial_state = &p->last.t, a.state_indices = &p->indices.t;
  expect_words(luattn_linear_backward(p->engine, p->spec, &a, NULL, &err),
               "state_indices: number 0 is 1, and the pool has 1 rows");
  unsetenv("LUATTN_CHECK");
  drop(&p->indices);
}

static void run_refusals(luattn_engine *engine, const char *specs) {
  test_row row = {.name = "refused", .spec = "retention", SIZES(BF16, 2, 2, 64, 64, 1), TOKENS(64)};
  problem p = {.row = &row, .engine = engine, .total = 64};
  char path[512];
  snprintf(path, sizeof path, "%s/retention.lua", specs);
  need(luattn_spec_load(path, NULL, &p.spec, &err) == LUATTN_OK, path);
  make_tokens(&p), make_states(&p);
  luattn_linear_args a = args_of(&p);
  a.o = NULL;
  expect_refusal(&p, &a, "o: is NULL, expected a tensor [batch, tokens, heads_v, head_dim_v]");
  a.o = &p.v.t;
  expect_refusal(&p, &a, "is shared with v");
  a = args_of(&p), a.state_layout = 0;
  expect_refusal(&p, &a, "state_layout: is 0, and initial_state is given");
  a = args_of(&p), a.initial_state = &p.want_last.t;
  expect_refusal(&p, &a, "states are float32, bfloat16 or float16 on a GPU");
  a = args_of(&p), a.k = &p.want.t;
  expect_refusal(&p, &a, "k: has dtype float64, expected bfloat16");
  a = args_of(&p), a.scale = (double)INFINITY;
  expect_refusal(&p, &a, "scale: is inf");
  a = args_of(&p), a.q = a.v = &p.want.t;
  expect_refusal(&p, &a, "has dtype bfloat16, expected float64");
  check_places(&p);
  check_lists(&p);
}

/* A row of the pool that two entries have, and ends behind q's rows. */
static void check_entries(problem *p, const luattn_linear_args *a) {
  put(I32, p->indices.host, 2, 0), send(&p->indices);
  expect_refusal(p, a,
                 "state_indices: two entries have row 0, whose state is written; give each entry a row of its own");
  put(I32, p->indices.host, 2, 1), send(&p->indices);
  put(I32, p->cu.host, 3, 10), send(&p->cu);
  expect_refusal(p, a, "cu_seqlens: number 3 is 10, expected 6 to 9, the rows of q");
}

/* With LUATTN_CHECK=1 decays above 0, found in inputs on the device: of a batch, and packed, where an entry without a state is
 * left alone. */
static void run_growth(luattn_engine *engine, const char *specs) {
  test_row rows_of[] = {
      {.name = "growth", .spec = "simple_gla", SIZES(F32, 1, 2, 16, 16, 2), TOKENS(5)},
      {.name = "packed", SIZES(F32, 1, 2, 16, 16, 3), .packed = true, .tokens = {2, 4, 3}, .pool = {1, -1, 2}}};
  for (int i = 0; i < 2; i++) {
    const bool packed = rows_of[i].packed;
    problem p = {.row = &rows_of[i], .engine = engine, .total = packed ? 9 : 5};
    luattn_spec_info info;
    char path[512];
    snprintf(path, sizeof path, "%s/simple_gla.lua", specs);
    need(luattn_spec_load(path, NULL, &p.spec, &err) == LUATTN_OK, path);
    luattn_spec_get_info(p.spec, &info);
    p.num_inputs = info.num_inputs;
    make_tokens(&p), make_states(&p);
    for (size_t n = 0; n < p.num_inputs; n++) make_input(&p, n, &info.inputs[n]);
    const luattn_linear_args a = args_of(&p);
    put(F32, p.of[0].host, packed ? 2 * 7 + 1 : 2 * (5 + 3) + 1, 0.25); /* token 1 of entry 2; token 3 of entry 1 */
    send(&p.of[0]);
    need(luattn_linear_forward(p.engine, p.spec, &a, NULL, &err) == LUATTN_OK, "growth that nobody asks for");
    setenv("LUATTN_CHECK", "1", 1);
    expect_refusal(&p, &a,
                   packed ? "luattn_linear_forward: decay: is 0.25 at entry 2, value head 1, token 1; "
                          : "luattn_linear_forward: decay: is 0.25 at entry 1, value head 1, token 3; ");
    expect_words(luattn_linear_forward(p.engine, p.spec, &a, NULL, &err), "give numbers of at most 0");
    put(F32, p.of[0].host, packed ? 2 * 7 + 1 : 2 * (5 + 3) + 1, 0);
    if (packed) put(F32, p.of[0].host, 2 * 3, 0.5); /* of the entry without a state */
    send(&p.of[0]);
    need(luattn_linear_forward(p.engine, p.spec, &a, NULL, &err) == LUATTN_OK, "decays of at most 0");
    if (packed) check_entries(&p, &a);
    unsetenv("LUATTN_CHECK");
    luattn_spec_free(p.spec);
  }
}

static void expect(bool ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "%s: '%s'\n", what, err.message);
  exit(1);
}

/* Images: the cache, with another key for another type; what a kernel of the other form says. */
static void run_images(luattn_engine *engine, const char *specs) {
  char path[512], dir[] = "/tmp/luattn_linear_XXXXXX";
  luattn_spec *spec, *attention;
  luattn_image *image, *other;
  luattn_kernel *kernel;
  const luattn_kernel *of_attention;
  luattn_compile_report report;
  need(mkdtemp(dir) != NULL, "a folder");
  snprintf(path, sizeof path, "%s/retention.lua", specs);
  need(luattn_spec_load(path, NULL, &spec, &err) == LUATTN_OK, path);
  luattn_target target = {
      .struct_size = sizeof target, .head_dim = 64, .arch = 90, .dtype = LUATTN_BF16, .cache_dir = dir};
  for (int again = 0; again < 2; again++) {
    need(luattn_compile(spec, &target, &image, &report, &err) == LUATTN_OK, "compile");
    expect(report.cache_hit == again && report.is_kept == 1, "the cache");
    expect(strstr(report.plan, "class L0 by chunks of 64 tokens") != NULL, "the plan");
    if (again == 0) luattn_image_free(image);
  }
  target.dtype = LUATTN_F16;
  need(luattn_compile(spec, &target, &other, &report, &err) == LUATTN_OK, "compile");
  expect(report.cache_hit == 0, "the cache of another type");
  need(luattn_kernel_load(driver, 0, image, &kernel, &err) == LUATTN_OK, "load");
  const luattn_args args = {.struct_size = sizeof args};
  const luattn_linear_args linear = {.struct_size = sizeof linear};
  expect(luattn_launch(kernel, &args, NULL, &err) == LUATTN_INVALID &&
             strstr(err.message, "forward of 'retention': the kernel is of linear attention") != NULL,
         "a launch of attention");
  const char text[] = "return attention { name = 'plain' }";
  need(luattn_spec_load_text("plain", text, strlen(text), NULL, &attention, &err) == LUATTN_OK, "plain");
  array q;
  make(&q, BF16, 4, (const int64_t[]){1, 1, 64, 64});
  fill(&q, 0);
  const luattn_args of_plain = {.struct_size = sizeof of_plain, .q = &q.t, .k = &q.t, .v = &q.t, .o = &q.t};
  need(luattn_engine_kernel(engine, attention, LUATTN_FORWARD, &of_plain, &of_attention, &err) == LUATTN_OK, "kernel");
  expect(luattn_linear_launch(of_attention, &linear, NULL, &err) == LUATTN_INVALID &&
             strstr(err.message, "the kernel is of attention; give it to luattn_launch") != NULL,
         "a launch of linear attention");
  luattn_kernel_unload(kernel);
  luattn_image_free(image), luattn_image_free(other);
  luattn_spec_free(spec);
  drop(&q);
  snprintf(path, sizeof path, "rm -rf '%s'", dir);
  expect(system(path) == 0, path);
}

/* Integers of hooks are of 32 bits in kernels. */
static void run_lengths(void) {
  static const struct {
    const char *decay;
    int64_t max_len;
  } rows_of[] = {{"-1e-9 * (t * t)", 46340}, {"-1e-9 * (3 * t + h)", 715816960}, {"-0.1 * b", 1 << 30}};
  for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++) {
    const luattn_target target = {.struct_size = sizeof target, .head_dim = 64, .arch = 90, .dtype = LUATTN_BF16};
    char text[256];
    luattn_spec *spec;
    luattn_image *image;
    luattn_kernel_description d = {.struct_size = sizeof d};
    snprintf(text, sizeof text, "return linear_attention { name = 'l', decay = function(b, h, t) return %s end }",
             rows_of[i].decay);
    need(luattn_spec_load_text("l", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, text);
    need(luattn_compile(spec, &target, &image, NULL, &err) == LUATTN_OK, text);
    need(luattn_image_describe(image, &d, &err) == LUATTN_OK, text);
    expect(d.max_len == rows_of[i].max_len, text);
    luattn_image_free(image);
    luattn_spec_free(spec);
  }
}

/* An input of any type has q's unless the target says another. */
static void run_types(void) {
  static const uint64_t types[] = {0, 1 + LUATTN_INPUT_F64, 1 + LUATTN_INPUT_F32, 15};
  static const uint32_t found[] = {LUATTN_INPUT_BF16, LUATTN_INPUT_F64, LUATTN_INPUT_F32};
  static const char text[] =
      "return linear_attention { name = 'l', inputs = { g = { axes = {'b', 't', 'hv'}, dtype = 'any' } }, "
      "decay = function(b, h, t) return g[{b, t, h}] end }";
  luattn_spec *spec;
  need(luattn_spec_load_text("l", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, err.message);
  for (int i = 0; i < 4; i++) {
    const luattn_target target = {
        .struct_size = sizeof target, .head_dim = 64, .arch = 90, .dtype = LUATTN_BF16, .input_types = types[i]};
    luattn_image *image;
    luattn_kernel_description d = {.struct_size = sizeof d};
    const luattn_status status = luattn_compile(spec, &target, &image, NULL, &err);
    if (i == 3) {
      expect(status == LUATTN_INVALID && strstr(err.message, "input_types: input 'g': is 15") != NULL, err.message);
      continue;
    }
    need(status == LUATTN_OK, err.message);
    need(luattn_image_describe(image, &d, &err) == LUATTN_OK, err.message);
    expect(d.inputs[0].dtype == found[i], "the type of g");
    luattn_image_free(image);
  }
  luattn_spec_free(spec);
}

int main(int argc, char **argv) {
  luattn_engine *engine;
  if (argc != 3) return fprintf(stderr, "linear_forward_test SPECS CASE\n"), 2;
  const luattn_engine_options options = {.struct_size = sizeof options};
  const luattn_status status = luattn_engine_open(&options, &engine, &err);
  if (status == LUATTN_UNSUPPORTED) return printf("%s\n", err.message), 77;
  need(status == LUATTN_OK, "open");
  driver = luattn_engine_driver(engine);
  if (strcmp(argv[2], "images") == 0) return run_images(engine, argv[1]), luattn_engine_close(engine), 0;
  if (strcmp(argv[2], "types") == 0) return run_types(), luattn_engine_close(engine), 0;
  if (strcmp(argv[2], "lengths") == 0) return run_lengths(), luattn_engine_close(engine), 0;
  if (strcmp(argv[2], "refusals") == 0) return run_refusals(engine, argv[1]), luattn_engine_close(engine), 0;
  if (strcmp(argv[2], "growth") == 0) return run_growth(engine, argv[1]), luattn_engine_close(engine), 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (strcmp(rows[i].name, argv[2]) == 0) {
      run(engine, argv[1], &rows[i]);
      luattn_engine_close(engine);
      return 0;
    }
  return fprintf(stderr, "no case %s\n", argv[2]), 2;
}
