/* host_test.c: runs the whole pipeline in every kind of host. Output, results, keys and messages are the
 * same, and the host's state is unchanged. */
#include "compiled.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "luattn/pack.h"
#include "tests/support/hosts.h"

/* Has numbers that Lua reads, computes and writes, names that depend on character classes, and subnormal
 * numbers. */
static const char FRACTIONS[] =
    "local slope = math.exp(-0.5) / 3\n"
    "return attention {\n"
    "  name = 'Inline' .. 1.5,\n"
    "  scalars = { cap = 50.5, tiny = 1e-30 },\n"
    "  inputs = { i_bias = { axes = {'h'}, grad = true }, ids = { axes = {'kv'}, dtype = 'i32' } },\n"
    "  score_mod = function(score, b, h, q_idx, kv_idx)\n"
    "    local x = 0.125 * cap * tanh(score / cap) + 1.5 - 0.25 * (q_idx - kv_idx) * slope\n"
    "    if kv_idx > 3 then x = x + i_bias[h] * 1e-40 + tiny end\n"
    "    return x\n"
    "  end,\n"
    "  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx and ids[kv_idx] * 0.5 < 20.5 end,\n"
    "}\n";
/* Nested as deeply as a spec may be, for the deepest recursion. */
static const char DEEP[] =
    "return attention {\n"
    "  scalars = { a = 0.5 },\n"
    "  score_mod = function(score, b, h, q_idx, kv_idx)\n"
    "    local x = score\n"
    "    for i = 1, 1300 do x = tanh(a * x) + 0.5 end\n"
    "    return x\n"
    "  end,\n"
    "}\n";
static const char NESTED[] =
    "local n = 0\n"
    "local function f(a, b)\n"
    "  n = n + 1\n"
    "  if n < 180 then table.sort({3, 1, 2}, f) end\n"
    "  return a < b\n"
    "end\n"
    "table.sort({2, 1, 3}, f)\n"
    "return attention { score_mod = function(s, b, h, q, kv) return s * n end }\n";

enum { BATCH = 1, HEADS = 2, LEN = 37, DIM = 8, ELEMENTS = BATCH * HEADS * LEN * DIM };
enum { Q, K, V, DOUT, NUM_GIVEN, O = NUM_GIVEN, DQ, DK, DV, NUM_TENSORS };

typedef struct record {
  const char *folder;
  bool first; /* this record fills the cache */
  luattn_error err;
  char text[16384];
  size_t size;
  char moved[256]; /* calls that changed the host's state */
  float data[NUM_TENSORS][ELEMENTS], lse[BATCH * HEADS * LEN], bias[HEADS], bias_grad[HEADS], scalar_grads[2];
  int ids[LEN];
} record;

static void note(record *r, const char *what, const void *bytes, size_t size) {
  unsigned long long h = 1469598103934665603ull;
  for (size_t i = 0; i < size; i++) h = (h ^ ((const unsigned char *)bytes)[i]) * 1099511628211ull;
  const int n = snprintf(r->text + r->size, sizeof r->text - r->size, "%s: %016llx\n", what, h);
  if (n > 0 && (size_t)n < sizeof r->text - r->size) r->size += (size_t)n;
}

static void note_text(record *r, const char *what, const char *text) { note(r, what, text, strlen(text)); }

static void note_message(record *r, luattn_status status) {
  const int n = snprintf(r->text + r->size, sizeof r->text - r->size, "%d %s\n", (int)status,
                         status != LUATTN_OK ? r->err.message : "");
  if (n > 0 && (size_t)n < sizeof r->text - r->size) r->size += (size_t)n;
}

static host_view before;

static void start(void) { hosts_look(&before); }

static luattn_status ended(record *r, const char *what, luattn_status status) {
  host_view after;
  hosts_look(&after);
  if (!hosts_same(&before, &after) && strlen(r->moved) + strlen(what) + 2 < sizeof r->moved)
    strcat(strcat(r->moved, what), " ");
  if (status != LUATTN_OK) note_message(r, status);
  return status;
}

/* Calls a luattn function whose last argument is `&r->err`, and returns its status. */
#define CALL(function, ...) (start(), ended(r, #function, function(__VA_ARGS__, &r->err)))

static luattn_spec *load_in(record *r, const char *source) {
  luattn_spec *spec = NULL;
  (void)CALL(luattn_spec_load_text, "host.lua", source, strlen(source), NULL, &spec);
  return spec;
}

static void emit_all(record *r, const luattn_spec *spec, luattn_target *t) {
  static const char *const stages[] = {"ir", "grad", "mask", "plan", "spec", "config", "ptx"};
  char *text;
  for (int i = 0; i < 7; i++) {
    if (CALL(luattn_emit, spec, t, stages[i], &text) != LUATTN_OK) continue;
    note_text(r, stages[i], text);
    if (strcmp(stages[i], "spec") == 0 && strstr(text, "0.125") == NULL) note_text(r, "no number", "");
    luattn_text_free(text);
  }
}

static void compile_in(record *r, const luattn_spec *spec, luattn_target *t) {
  luattn_image *image;
  luattn_compile_report report;
  char *text;
  size_t size;
  if (CALL(luattn_compile, spec, t, &image, &report) != LUATTN_OK) return;
  if (report.cache_hit == (int)r->first) note_text(r, "cache", r->first ? "hit" : "missed");
  note_text(r, "report", report.plan);
  const void *bytes = luattn_image_bytes(image, &size);
  note(r, "image", bytes, size);
  if (CALL(luattn_emit_source, spec, t, image, &text) == LUATTN_OK) {
    note_text(r, "source", text);
    luattn_text_free(text);
  }
  char path[128];
  snprintf(path, sizeof path, "%s/pack", r->folder);
  const luattn_pack_item item = {.kind = LUATTN_PACK_IMAGE, .image = image};
  luattn_pack *pack;
  luattn_image *back;
  if (CALL(luattn_pack_write, path, "13.0", &item, 1) == LUATTN_OK &&
      CALL(luattn_pack_open, path, &pack) == LUATTN_OK) {
    if (CALL(luattn_pack_image, pack, 0, &back) == LUATTN_OK) {
      bytes = luattn_image_bytes(back, &size);
      note(r, "packed", bytes, size);
      luattn_image_free(back);
    }
    luattn_pack_close(pack);
  }
  luattn_image_free(image);
}

/* Stores and reads tuned tiles, and lists candidates. */
static void tune_in(record *r, const luattn_spec *spec, luattn_target t) {
  luattn_tiles tiles[64];
  luattn_memory_estimate estimate;
  const luattn_problem problem = {.batch = 2, .heads = 4, .heads_kv = 2, .q_len = 1000, .kv_len = 1000};
  int count = 0, tile[2];
  char path[256], *text;
  t.device = "Some GPU";
  if (CALL(luattn_plan_candidates, spec, &t, tiles, 64, &count) == LUATTN_OK)
    note(r, "candidates", tiles, (size_t)count * sizeof *tiles);
  if (CALL(luattn_plan_tiles, spec, &t, &tile[0], &tile[1]) == LUATTN_OK) note(r, "tiles", tile, sizeof tile);
  if (CALL(luattn_estimate_memory, spec, &t, &problem, &estimate) == LUATTN_OK)
    note(r, "memory", &estimate, sizeof estimate);
  if (count == 0) return;
  t.tiles = &tiles[count - 1];
  if (CALL(luattn_tuned_store, spec, &t, 1.2345678, path, sizeof path) != LUATTN_OK) return;
  char record_text[1024] = "";
  FILE *f = fopen(path, "r");
  if (f != NULL) {
    note(r, "record", record_text, fread(record_text, 1, sizeof record_text, f));
    fclose(f);
  }
  if (strstr(record_text, "gain 1.2345678\n") == NULL) note_text(r, "gain", "not as written");
  t.tiles = NULL;
  if (CALL(luattn_emit, spec, &t, "plan", &text) == LUATTN_OK) {
    note_text(r, "tuned", text);
    if (strstr(text, "tuned: 1.23 times as fast") == NULL) note_text(r, "tuned", "not used");
    luattn_text_free(text);
  }
  (void)CALL(luattn_tuned_store, spec, &t, 0, path, sizeof path);
}

typedef struct tensors {
  DLTensor of[NUM_TENSORS], lse, bias, bias_grad, ids, scalars;
  luattn_input inputs[2];
} tensors;

static const luattn_scalar SCALARS[] = {{"cap", 0x1.4p+5}};
static int64_t shape[] = {BATCH, HEADS, LEN, DIM}, row_shape[] = {BATCH, HEADS, LEN}, heads[] = {HEADS},
               length[] = {LEN}, two[] = {2};

static DLTensor tensor_of(void *data, int ndim, int64_t *sizes) {
  return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {kDLFloat, 32, 1}, .shape = sizes};
}

static luattn_args args_of(record *r, tensors *t) {
  for (int i = 0; i < NUM_TENSORS; i++) t->of[i] = tensor_of(r->data[i], 4, shape);
  t->lse = tensor_of(r->lse, 3, row_shape);
  t->bias = tensor_of(r->bias, 1, heads);
  t->bias_grad = tensor_of(r->bias_grad, 1, heads);
  t->scalars = tensor_of(r->scalar_grads, 1, two);
  t->ids = tensor_of(r->ids, 1, length);
  t->ids.dtype = (DLDataType){kDLInt, 32, 1};
  t->inputs[0] = (luattn_input){"i_bias", &t->bias, &t->bias_grad};
  t->inputs[1] = (luattn_input){"ids", &t->ids, NULL};
  return (luattn_args){.struct_size = sizeof(luattn_args),
                       .q = &t->of[Q],
                       .k = &t->of[K],
                       .v = &t->of[V],
                       .o = &t->of[O],
                       .lse = &t->lse,
                       .dout = &t->of[DOUT],
                       .dq = &t->of[DQ],
                       .dk = &t->of[DK],
                       .dv = &t->of[DV],
                       .scalar_grads = &t->scalars,
                       .inputs = t->inputs,
                       .num_inputs = 2,
                       .scalars = SCALARS,
                       .num_scalars = 1};
}

static void cpu_in(record *r, const luattn_spec *spec) {
  static const luattn_dtype precisions[] = {LUATTN_F64, LUATTN_F32, LUATTN_BF16, LUATTN_F16};
  tensors t;
  luattn_args args = args_of(r, &t);
  unsigned char classes[9];
  int64_t kept;
  for (int i = 0; i < 4; i++) {
    if (CALL(luattn_cpu_forward_in, spec, &args, precisions[i]) != LUATTN_OK) continue;
    note(r, "o", r->data[O], sizeof r->data[O]);
    note(r, "lse", r->lse, sizeof r->lse);
    if (CALL(luattn_cpu_backward_in, spec, &args, precisions[i]) != LUATTN_OK) continue;
    for (int j = DQ; j <= DV; j++) note(r, "gradient", r->data[j], sizeof r->data[j]);
    note(r, "gradient", r->bias_grad, sizeof r->bias_grad);
    note(r, "gradient", r->scalar_grads, sizeof r->scalar_grads);
  }
  if (CALL(luattn_mask_tiles, spec, &args, 0, 1, 16, 16, classes) == LUATTN_OK)
    note(r, "classes", classes, sizeof classes);
  if (CALL(luattn_mask_count, spec, &args, &kept) == LUATTN_OK) note(r, "kept", &kept, sizeof kept);
  args.scale = 0x1p-1030; /* not representable in float32 */
  (void)CALL(luattn_cpu_forward_in, spec, &args, LUATTN_F32);
  args.scale = -1.5;
  (void)CALL(luattn_cpu_forward, spec, &args);
}

static void messages_in(record *r, const luattn_spec *spec, const luattn_target *t) {
  const luattn_problem huge = {.batch = 1 << 30, .heads = 1 << 30, .heads_kv = 1, .q_len = 1 << 30, .kv_len = 1 << 30};
  luattn_memory_estimate estimate;
  luattn_target other = *t;
  (void)load_in(r, "error('x' .. 0.5)");
  (void)load_in(r, "return attention { scalars = { x = tostring(0.5) } }");
  (void)load_in(r, "return attention { score_mod = function(s, b, h, q, kv) return s + IDS end }");
  (void)load_in(r,
                "return attention { inputs = { w = { axes = {'h'} } },\n"
                "  score_mod = function(s, b, h, q, kv) return s + w[1.5] end }");
  (void)CALL(luattn_estimate_memory, spec, t, &huge, &estimate);
  other.device = "Some GPU", other.tiles = &(luattn_tiles){.tile_m = 64, .tile_n = 64};
  (void)CALL(luattn_tuned_store, spec, &other, -1.5, NULL, 0);
  (void)CALL(luattn_spec_load, "/nonexistent/no.lua", NULL, &(luattn_spec *){NULL});
}

static void pipeline(void *data) {
  record *r = data;
  luattn_spec *spec = load_in(r, FRACTIONS);
  if (spec == NULL) return;
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  note_text(r, info.name, "");
  note(r, "hash", info.hash, sizeof info.hash);
  note(r, "scalars", info.scalar_defaults, info.num_scalars * sizeof *info.scalar_defaults);
  luattn_target t = target_new();
  t.cache_dir = r->folder;
  for (int pass = 0; pass < 2; pass++)
    for (int is_half = 0; is_half < 2; is_half++) {
      t.pass = (luattn_pass)pass, t.dtype = is_half ? LUATTN_BF16 : LUATTN_F32, t.arch = is_half ? 90 : 80;
      emit_all(r, spec, &t);
      compile_in(r, spec, &t);
      tune_in(r, spec, t);
    }
  cpu_in(r, spec);
  messages_in(r, spec, &t);
  luattn_spec_free(spec);
}

static void deep_pipeline(void *data) {
  record *r = data;
  static const char *const sources[] = {DEEP, NESTED};
  for (int i = 0; i < 2; i++) {
    luattn_spec *spec = load_in(r, sources[i]);
    if (spec == NULL) continue;
    luattn_target t = target_new();
    char *text;
    if (CALL(luattn_emit, spec, &t, "spec", &text) == LUATTN_OK) luattn_text_free(text);
    tensors of;
    luattn_args args = args_of(r, &of);
    args.num_inputs = args.num_scalars = 0;
    args.scalar_grads = NULL;
    (void)CALL(luattn_cpu_forward, spec, &args);
    note(r, "o", r->data[O], sizeof r->data[O]);
    (void)CALL(luattn_cpu_backward, spec, &args);
    note(r, "dq", r->data[DQ], sizeof r->data[DQ]);
    luattn_spec_free(spec);
  }
}

/* Compiles with the real NVRTC, which takes 125 KB of stack for a small kernel. */
static void real_compiler(void *data) {
  record *r = data;
  luattn_spec *spec = load_in(r, FRACTIONS);
  if (spec == NULL) return;
  luattn_target t = target_new();
  luattn_image *image;
  int version[2];
  t.nvrtc = NULL, t.pass = LUATTN_FORWARD;
  if (CALL(luattn_nvrtc_version, NULL, &version[0], &version[1]) == LUATTN_OK &&
      CALL(luattn_compile, spec, &t, &image, NULL) == LUATTN_OK) {
    size_t size;
    const void *bytes = luattn_image_bytes(image, &size);
    note(r, "image", bytes, size);
    luattn_image_free(image);
  }
  luattn_spec_free(spec);
}

static record *record_new(const folder *f) {
  record *r = calloc(1, sizeof *r);
  assert_non_null(r);
  r->folder = f->path;
  for (int i = 0; i < NUM_GIVEN; i++)
    for (int j = 0; j < ELEMENTS; j++) r->data[i][j] = (float)sin(0.7 * j + i) * (i == V && j % 5 == 0 ? 1e-40f : 1);
  for (int i = 0; i < HEADS; i++) r->bias[i] = 0.3f * (float)(i + 1);
  for (int i = 0; i < LEN; i++) r->ids[i] = 2 * i;
  return r;
}

static void in_hosts(void (*work)(void *), host_kind first) {
  folder f = folder_new();
  record *plain = record_new(&f);
  plain->first = true;
  hosts_run(HOST_PLAIN, work, plain);
  assert_true(plain->size > 0);
  for (int host = (int)first; host < NUM_HOSTS; host++) {
    if (!hosts_exist((host_kind)host)) continue;
    record *r = record_new(&f);
    hosts_run((host_kind)host, work, r);
    if (strcmp(r->text, plain->text) != 0)
      fail_msg("%s: writes\n%s\nand not\n%s", hosts_name((host_kind)host), r->text, plain->text);
    if (r->moved[0] != 0) fail_msg("%s: is left changed by %s", hosts_name((host_kind)host), r->moved);
    assert_memory_equal(r->data, plain->data, sizeof r->data);
    free(r);
  }
  free(plain);
  folder_remove(&f);
}

static void test_pipeline(void **state) {
  (void)state;
  in_hosts(pipeline, HOST_COMMA);
}

static void test_deep(void **state) {
  (void)state;
  in_hosts(deep_pipeline, HOST_COMMA);
}

static void test_real_compiler(void **state) { /* without NVRTC, compares the error */
  (void)state;
  in_hosts(real_compiler, HOST_SMALL);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_pipeline), cmocka_unit_test(test_deep),
                                     cmocka_unit_test(test_real_compiler)};
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (failed == 0 && !hosts_exist(HOST_COMMA)) {
    fprintf(stderr, "skipped: there is no locale 'comma' in LOCPATH, as this machine has no localedef\n");
    return 77;
  }
  return failed;
}
