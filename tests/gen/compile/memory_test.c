/* memory_test.c: fails each allocation between a spec's text and an image once, and each allocation of the
 * CPU path, of which a tree draws a third, and about MOST where there are many: the allocator's and malloc's own (the
 * linker redirects the library's calls of malloc, calloc and realloc here). Every time the result must be
 * LUATTN_NO_MEMORY, without a leak. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiled.h"
#include "gen/base/arena.h"
#include "gen/cache/cache.h"
#include "gen/compile/box_choice.h"
#include "luattn/linear.h"
#include "tests/support/drawn.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *ptr, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *ptr, size_t size);

static int skip_n = 0;
static struct budget {
  bool armed;        /* true only within the calls under test */
  atomic_long count; /* shared by two threads */
  long fail_at;
  size_t held; /* bytes allocated by the allocator */
} budget;

static bool refused(void) {
  if (!budget.armed || atomic_fetch_add(&budget.count, 1) != budget.fail_at) return false;
  if (getenv("ABORT_AT") && budget.fail_at == atoi(getenv("ABORT_AT")) && --skip_n < 0) abort();
  return true;
}

void *__wrap_malloc(size_t size) { return refused() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return refused() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *ptr, size_t size) { return refused() ? NULL : __real_realloc(ptr, size); }

/* An arena gets large chunks from its allocator, so these wrappers refuse single allocations from the
 * arena. */
void *__real_arena_new(arena *a, size_t size);
void *__real_arena_array(arena *a, size_t count, size_t size);
char *__real_arena_copy(arena *a, const char *s, size_t n);
void *__wrap_arena_new(arena *a, size_t size);
void *__wrap_arena_array(arena *a, size_t count, size_t size);
char *__wrap_arena_copy(arena *a, const char *s, size_t n);

char *__wrap_arena_printf(arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void *refuse(arena *a) { return __real_arena_new(a, SIZE_MAX); } /* fails as if it were too large */

void *__wrap_arena_new(arena *a, size_t size) { return refused() ? refuse(a) : __real_arena_new(a, size); }
void *__wrap_arena_array(arena *a, size_t count, size_t size) {
  return refused() ? refuse(a) : __real_arena_array(a, count, size);
}
char *__wrap_arena_copy(arena *a, const char *s, size_t n) {
  return refused() ? refuse(a) : __real_arena_copy(a, s, n);
}

char *__wrap_arena_printf(arena *a, const char *fmt, ...) {
  va_list args, again;
  if (refused()) return refuse(a);
  va_start(args, fmt);
  va_copy(again, args);
  const int n = vsnprintf(NULL, 0, fmt, args);
  char *p = __real_arena_new(a, (size_t)n + 1);
  if (p != NULL) vsnprintf(p, (size_t)n + 1, fmt, again);
  va_end(again);
  va_end(args);
  return p;
}

static void *counted(void *user, void *ptr, size_t old_size, size_t new_size) {
  (void)user;
  if (new_size == 0) {
    budget.held -= old_size;
    free(ptr);
    return NULL;
  }
  if (refused()) return NULL;
  void *p = __real_realloc(ptr, new_size);
  assert_non_null(p);
  budget.held += new_size - old_size;
  return p;
}

static const luattn_allocator allocator = {counted, NULL};

/* Runs `work` with allocation number `fail_at` refused (-1: none). */
typedef luattn_status (*work_function)(void *data, luattn_error *err);

static luattn_status run(work_function work, void *data, long fail_at, luattn_error *err) {
  budget.count = 0;
  budget.armed = true, budget.fail_at = fail_at;
  const luattn_status status = work(data, err);
  budget.armed = false;
  return status;
}

enum { PARTS = 3, MOST = 200 }; /* of the allocations a tree draws one in PARTS, and about MOST of many */

/* Fails each allocation in turn. `may_recover`: the call may survive a failure, as Lua does, which collects
 * garbage and retries. */
static void fail_each(const char *what, work_function work, void *data, bool may_recover) {
  luattn_error err;
  for (int i = 0; i < 2; i++) { /* the first run may fill a cache */
    if (run(work, data, -1, &err) != LUATTN_OK) fail_msg("%s: %s", what, err.message);
  }
  const long total = budget.count;
  const size_t before = budget.held;
  const int parts = drawn_parts(total, MOST, PARTS);
  long failed = 0;
  long tried = 0;
  for (long i = 0; i < total; i++) {
    if (!drawn(what, (int)(i % parts), parts)) continue;
    const luattn_status status = run(work, data, i, &err);
    tried++;
    if (budget.held != before) {
      fail_msg("%s: allocation %ld of %ld: %zu bytes are left", what, i, total, budget.held - before);
    }
    if (status == LUATTN_NO_MEMORY && strstr(err.message, "memory") != NULL)
      failed++;
    else if (status != LUATTN_OK)
      fail_msg("%s: allocation %ld of %ld: status %d: %s", what, i, total, status, err.message);
    else if (!may_recover)
      fail_msg("%s: allocation %ld of %ld: nobody noticed", what, i, total);
  }
  print_message("%s: %ld allocations, %ld tried, %ld of them needed\n", what, total, tried, failed);
  assert_true(failed > 0 && (may_recover || failed == tried));
}

/* A spec with modified tensors, an online function that saves a row value, and a mask without closed form. */
static const char OTHER[] =
    "return attention {\n"
    "  name = 'other',\n"
    "  inputs = { gain = { axes = {'h'}, grad = true }, shift = { axes = {'b', 'free'}, grad = true } },\n"
    "  query_mod = function(x, b, h, pos, d) return x * cos(pos * exp(-d)) * gain[h] end,\n"
    "  value_mod = function(x, b, h, pos, d) return x + shift[{b, d}] end,\n"
    "  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx and eq((q_idx - kv_idx) % 3, 0) "
    "end,\n"
    "  online_func = online_retention,\n"
    "}\n";

/* Linear attention, with sums over rows and parameters of each kind. */
static const char LINEAR[] =
    "return linear_attention {\n"
    "  name = 'linear', scalars = { c = 0.5 },\n"
    "  inputs = { g = { axes = {'b', 't', 'hv'}, grad = true }, A = { axes = {'hv'}, grad = true } },\n"
    "  query_mod = function(x) return l2norm(x) end, key_mod = function(x) return l2norm(x) end,\n"
    "  decay = function(b, h, t) return -softplus(g[{b, t, h}]) * exp(A[h]) end, update = delta_rule(0.5),\n"
    "  skip = function(x) return c * x end,\n"
    "}\n";

/* ---- workloads ---- */

static luattn_status load_spec(void *data, luattn_error *err) {
  const char *source = data;
  luattn_spec *spec = NULL;
  const luattn_status status = luattn_spec_load_text("m.lua", source, strlen(source), &allocator, &spec, err);
  if (status == LUATTN_OK) luattn_spec_free(spec);
  return status;
}

static luattn_spec *loaded(const char *source) {
  luattn_spec *spec = NULL;
  luattn_error err;
  budget.armed = false;
  if (luattn_spec_load_text("m.lua", source, strlen(source), &allocator, &spec, &err) != LUATTN_OK)
    fail_msg("%s", err.message);
  return spec;
}

typedef struct compile_work {
  const char *source; /* NULL: SPEC */
  luattn_spec *spec;
  luattn_target target;
  const char *stage; /* NULL: compile */
  bool forget;       /* drops the disk cache */
} compile_work;

static luattn_status compile_spec(void *data, luattn_error *err) {
  const compile_work *w = data;
  luattn_image *image = NULL;
  char *text = NULL;
  size_t removed;
  if (w->forget) assert_int_equal(cache_clear(w->target.cache_dir, &removed, NULL), LUATTN_OK);
  const luattn_status status = w->stage != NULL ? luattn_emit(w->spec, &w->target, w->stage, &text, err)
                                                : luattn_compile(w->spec, &w->target, &image, NULL, err);
  luattn_image_free(image);
  luattn_text_free(text);
  return status;
}

static void fail_each_compile(const char *what, compile_work *w) {
  w->spec = loaded(w->source != NULL ? w->source : SPEC);
  fail_each(what, compile_spec, w, false);
  luattn_spec_free(w->spec);
}

static void test_load(void **state) {
  (void)state;
  fail_each("load", load_spec, (void *)(uintptr_t)SPEC, true);
  fail_each("load the other", load_spec, (void *)(uintptr_t)OTHER, true);
  fail_each("load linear attention", load_spec, (void *)(uintptr_t)LINEAR, true);
}

static void test_compile(void **state) {
  (void)state;
  const luattn_dtype dtypes[] = {LUATTN_F32, LUATTN_BF16};
  for (int i = 0; i < 4; i++) {
    compile_work w = {.target = target_new()};
    w.target.pass = i % 2 ? LUATTN_BACKWARD : LUATTN_FORWARD;
    w.target.dtype = dtypes[i / 2];
    fail_each_compile(i % 2 ? "compile backward" : "compile forward", &w);
    w.source = OTHER;
    fail_each_compile("compile the other", &w);
  }
}

static void test_compile_with_cache(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    folder dir = folder_new();
    compile_work w = {.target = target_new(), .forget = i == 1};
    w.target.cache_dir = dir.path;
    fail_each_compile(i == 0 ? "compile with a cache that has it" : "compile into a cache", &w);
    folder_remove(&dir);
  }
}

/* The compiler tries other tiles while a plan spills. If it runs out of memory then, it must not keep the
 * plan that spills. */
static void test_compile_that_spills(void **state) {
  (void)state;
  compile_work w = {.target = target_new()};
  fake_mode("spill");
  w.target.pass = LUATTN_FORWARD;
  fail_each_compile("compile what spills", &w);
  fake_mode(NULL);
}

/* Covers a tuning record that is used, a stale one, and the storing of one. */
static luattn_status store_tuned(void *data, luattn_error *err) {
  const compile_work *w = data;
  return luattn_tuned_store(w->spec, &w->target, 2, NULL, 0, err);
}

static void test_tuned(void **state) {
  (void)state;
  const luattn_tiles tiles = {128, 96, 384, 2, 0, 0};
  folder dir = folder_new();
  compile_work w = {.target = target_new()};
  w.target.pass = LUATTN_FORWARD;
  w.target.dtype = LUATTN_BF16;
  w.target.arch = 90;
  w.target.cache_dir = dir.path;
  w.target.device = "Fake 0";
  w.target.tiles = &tiles;
  w.spec = loaded(SPEC);
  fail_each("remember tiles", store_tuned, &w, false);
  luattn_spec_free(w.spec);
  w.target.tiles = NULL;
  fail_each_compile("compile with remembered tiles", &w);
  w.target.nvrtc = OTHER_NVRTC;
  fail_each_compile("compile beside a stale record", &w);
  folder_remove(&dir);
}

/* The same of pairs of boxes over a grid: listed, stored, and chosen by a call that has a record, a stale one or none. */
typedef struct boxes_work {
  luattn_spec *spec;
  luattn_target target;
  luattn_args args;
} boxes_work;

static luattn_status list_boxes(void *data, luattn_error *err) {
  const boxes_work *w = data;
  luattn_target open = w->target;
  luattn_box_pair pair[24];
  int count;
  open.query_tile_size = open.key_tile_size = 0;
  return luattn_plan_box_pairs(w->spec, &open, &w->args, pair, 24, &count, err);
}

static luattn_status store_boxes(void *data, luattn_error *err) {
  const boxes_work *w = data;
  return luattn_tuned_boxes_store(w->spec, &w->target, &w->args, 2, NULL, 0, err);
}

static luattn_status choose_boxes(void *data, luattn_error *err) {
  const boxes_work *w = data;
  const box_call of = {{64, 48}, {64, 48}, 2, 2};
  box_choice choice;
  luattn_target open = w->target;
  open.query_tile_size = open.key_tile_size = 0;
  return box_choice_find(w->spec, &open, &of, &choice, err);
}

static void test_tuned_boxes(void **state) {
  (void)state;
  folder dir = folder_new();
  int64_t shape[] = {1, 2, 64, 48, 128};
  DLTensor tensor = {.ndim = 5, .shape = shape};
  boxes_work w = {.target = target_new(), .args = {.struct_size = sizeof w.args, .q = &tensor, .k = &tensor}};
  w.target.pass = LUATTN_FORWARD, w.target.wants = 0;
  w.target.dtype = LUATTN_BF16, w.target.arch = 90;
  w.target.head_dim = w.target.head_dim_v = 128;
  w.target.cache_dir = dir.path, w.target.device = "Fake 0";
  w.target.query_tile_size = LUATTN_BOX(0, 0, 8, 16), w.target.key_tile_size = LUATTN_BOX(0, 0, 14, 8);
  w.spec = loaded(
      "return attention { name = 'window', grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {13, 13} } }");
  fail_each("list pairs of boxes", list_boxes, &w, false);
  fail_each("choose boxes", choose_boxes, &w, false);
  fail_each("remember boxes", store_boxes, &w, false);
  fail_each("choose remembered boxes", choose_boxes, &w, false);
  w.target.nvrtc = OTHER_NVRTC;
  fail_each("choose boxes beside a stale record", choose_boxes, &w, false);
  luattn_spec_free(w.spec);
  folder_remove(&dir);
}

static void test_emit(void **state) {
  (void)state;
  static const char *const stages[] = {"ir", "grad", "mask", "plan", "spec", "config", "ptx"};
  for (int i = 0; i < 7; i++) {
    compile_work w = {.target = target_new(), .stage = stages[i]};
    fail_each_compile(stages[i], &w);
  }
}

/* The CPU path takes its memory from the spec's allocator too. */
typedef struct cpu_work {
  luattn_spec *spec;
  luattn_args args;
  int which; /* forward, backward, tiles, survey, count */
} cpu_work;

static luattn_status run_cpu(void *data, luattn_error *err) {
  const cpu_work *w = data;
  unsigned char tiles[16];
  luattn_mask_counts counts = {.struct_size = sizeof counts};
  int64_t kept;
  switch (w->which) {
    case 0:
      return luattn_cpu_forward(w->spec, &w->args, err);
    case 1:
      return luattn_cpu_backward(w->spec, &w->args, err);
    case 2:
      return luattn_mask_tiles(w->spec, &w->args, 0, 0, 4, 4, tiles, err);
    case 3:
      return luattn_mask_survey(w->spec, NULL, &w->args, 4, 4, &counts, err);
    default:
      return luattn_mask_count(w->spec, &w->args, &kept, err);
  }
}

static void test_cpu(void **state) {
  (void)state;
  static const char *const names[] = {"cpu forward", "cpu backward", "mask tiles", "mask survey", "mask count"};
  static double x[13][64]; /* q, k, v, o, lse, dout, dq, dk, dv, slopes, d_slopes, d_cap, dlse */
  static int32_t ids[8];
  int64_t rows[] = {1, 2, 8, 4}, heads[] = {2}, columns[] = {8}, one[] = {1};
  DLTensor t[13], id = {.data = ids, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = columns};
  for (int i = 0; i < 13; i++) {
    t[i] = (DLTensor){.data = x[i], .device = {kDLCPU, 0}, .ndim = 4, .dtype = {kDLFloat, 64, 1}, .shape = rows};
  }
  t[4].ndim = t[12].ndim = 3;
  t[9].ndim = t[10].ndim = t[11].ndim = 1;
  t[9].shape = t[10].shape = heads, t[11].shape = one;
  const luattn_input inputs[] = {{"slopes", &t[9], &t[10]}, {"ids", &id, NULL}};
  cpu_work w = {.args = {.struct_size = sizeof w.args,
                         .q = &t[0],
                         .k = &t[1],
                         .v = &t[2],
                         .o = &t[3],
                         .lse = &t[4],
                         .dout = &t[5],
                         .dlse = &t[12],
                         .dq = &t[6],
                         .dk = &t[7],
                         .dv = &t[8],
                         .inputs = inputs,
                         .num_inputs = 2,
                         .scalar_grads = &t[11]}};
  w.spec = loaded(SPEC);
  for (w.which = 0; w.which < 5; w.which++) fail_each(names[w.which], run_cpu, &w, false);
  luattn_spec_free(w.spec);
}

typedef struct linear_work {
  luattn_spec *spec;
  luattn_linear_args args;
  bool backward;
} linear_work;

static luattn_status run_linear(void *data, luattn_error *err) {
  const linear_work *w = data;
  return w->backward ? luattn_cpu_linear_backward(w->spec, &w->args, err)
                     : luattn_cpu_linear_forward(w->spec, &w->args, err);
}

static void test_linear(void **state) {
  (void)state;
  static const char *const stages[] = {"ir", "grad", "plan"};
  static double x[11][64]; /* q, k, v, o, dout, dq, dk, dv, g, A, scalar_grads */
  int64_t rows[] = {1, 4, 2, 4}, heads[] = {2}, one[] = {1};
  DLTensor t[11];
  for (int i = 0; i < 3; i++) {
    compile_work w = {.source = LINEAR, .target = target_new(), .stage = stages[i]};
    fail_each_compile(stages[i], &w);
  }
  for (int i = 0; i < 11; i++)
    t[i] = (DLTensor){.data = x[i], .device = {kDLCPU, 0}, .ndim = 4, .dtype = {kDLFloat, 64, 1}, .shape = rows};
  t[8].ndim = 3, t[9].ndim = t[10].ndim = 1, t[9].shape = heads, t[10].shape = one;
  const luattn_input inputs[] = {{"g", &t[8], NULL}, {"A", &t[9], NULL}};
  linear_work w = {.args = {.struct_size = sizeof w.args,
                            .q = &t[0],
                            .k = &t[1],
                            .v = &t[2],
                            .o = &t[3],
                            .dout = &t[4],
                            .dq = &t[5],
                            .dk = &t[6],
                            .dv = &t[7],
                            .inputs = inputs,
                            .num_inputs = 2,
                            .scalar_grads = &t[10]}};
  w.spec = loaded(LINEAR);
  for (int i = 0; i < 2; i++) {
    w.backward = i == 1;
    fail_each(i == 0 ? "linear forward" : "linear backward", run_linear, &w, false);
  }
  luattn_spec_free(w.spec);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_linear),
      cmocka_unit_test(test_load),
      cmocka_unit_test(test_compile),
      cmocka_unit_test(test_compile_with_cache),
      cmocka_unit_test(test_compile_that_spills),
      cmocka_unit_test(test_tuned),
      cmocka_unit_test(test_tuned_boxes),
      cmocka_unit_test(test_emit),
      cmocka_unit_test(test_cpu),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
