/* graph_test.c: captures forward and backward into one CUDA graph, replays it with new inputs, and compares
 * with direct launches and the CPU path.
 *
 * The capture must run nothing and must keep no pointer to the caller's arguments. A replay must zero all
 * memory that its kernels add to. o, lse, dk and dv must equal those of a direct launch in every bit. Some
 * families sum the other results with atomics, so these are compared with the CPU path, like all outputs.
 *
 * usage: gpu_graph --examples DIR [--only SUBSTRING] [--verbose]. Exit: 0, 1, or 77 without a GPU. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "cli/check.h"
#include "tests/gpu/memory.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
#define BLOCK_BYTES ((size_t)64 << 20)
enum { ROUNDS = 3, REPLAYS = 3 };

/* Specs: plain; with a mask that reads inputs; with scalars and an input with a gradient; with mods of q and
 * k. */
static const char *const examples[] = {"full", "causal", "document", "gemma2", "t5_relative_bias", "xpos"};
static const char *const dtypes[] = {"bf16", "f16", "f32"};
static const char *const shapes[] = {"2,4,2,300,300,128", "1,6,3,129,257,64"};
/* Additional cases of a spec. With more tiles than a device runs at once, blocks take tiles from a work
 * counter, and each replay finds the counter as the previous one left it. With tile skipping, each replay
 * computes the bitmap again from the new inputs. */
static const struct extra {
  const char *example, *dtype, *shape, *skip;
} extras[] = {
    {"causal", "bf16", "1,32,8,1000,200,64", NULL},
    {"alibi", "bf16", "1,4,2,300,1300,128", "always"},
    {"alibi", "f16", "2,8,2,257,900,64", "always"},
};

/* The functions of libcuda that the test itself calls: member, symbol, parameters. A CUresult is an int; all
 * handles are pointers. */
#define GRAPH_FUNCTIONS(X)                                                                            \
  X(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                         \
  X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                                    \
  X(context_push, "cuCtxPushCurrent_v2", (void *context))                                             \
  X(stream_create, "cuStreamCreate", (void **stream, unsigned flags))                                 \
  X(stream_destroy, "cuStreamDestroy_v2", (void *stream))                                             \
  X(begin, "cuStreamBeginCapture_v2", (void *stream, int mode))                                       \
  X(end, "cuStreamEndCapture", (void *stream, void **graph))                                          \
  X(instantiate, "cuGraphInstantiateWithFlags", (void **exec, void *graph, unsigned long long flags)) \
  X(graph_destroy, "cuGraphDestroy", (void *graph))                                                   \
  X(replay, "cuGraphLaunch", (void *exec, void *stream))                                              \
  X(exec_destroy, "cuGraphExecDestroy", (void *exec))

enum { STREAM_NON_BLOCKING = 1, CAPTURE_GLOBAL = 0 }; /* the strictest mode refuses calls that may wait or allocate */

typedef struct suite {
#define MEMBER(name, symbol, params) int(*name) params;
  GRAPH_FUNCTIONS(MEMBER)
#undef MEMBER
  luattn_engine *engine;
  luattn_driver *driver;
  memory memory;
  void *context, *stream;
  const char *examples, *only;
  int passed, failed;
  bool verbose;
} suite;

#define CUDA(call)                                                                             \
  do {                                                                                         \
    const int result_ = (call);                                                                \
    if (result_ != 0) return luattn_fail(err, LUATTN_CUDA, "%s: CUresult %d", #call, result_); \
  } while (0)

static luattn_status load_functions(suite *s, luattn_error *err) {
  const char *path = getenv("LUATTN_LIBCUDA");
  void *library = dlopen(path != NULL && *path != 0 ? path : "libcuda.so.1", RTLD_NOW | RTLD_NODELETE);
  if (library == NULL) return luattn_fail(err, LUATTN_CUDA, "dlopen: %s", dlerror());
#define LOAD(name, symbol, params)                                                          \
  {                                                                                         \
    void *address = dlsym(library, symbol);                                                 \
    if (address == NULL) return luattn_fail(err, LUATTN_CUDA, "libcuda has no %s", symbol); \
    memcpy(&s->name, &address, sizeof address);                                             \
  }
  GRAPH_FUNCTIONS(LOAD)
#undef LOAD
  return LUATTN_OK;
}

/* ---- one case ---- */

typedef struct test_call {
  const luattn_spec *spec;
  cli_problem problem;
  cli_result result; /* call_read stores outputs here */
  call call;
  luattn_args forward, backward; /* each with a workspace */
} test_call;

static luattn_status launch_both(const suite *s, const test_call *t, void *stream, luattn_error *err) {
  TRY(luattn_forward(s->engine, t->spec, &t->forward, stream, err));
  return luattn_backward(s->engine, t->spec, &t->backward, stream, err);
}

static luattn_status capture(const suite *s, const test_call *t, void **exec, luattn_error *err) {
  void *graph = NULL;
  CUDA(s->begin(s->stream, CAPTURE_GLOBAL));
  const luattn_status status = launch_both(s, t, s->stream, err);
  const int result = s->end(s->stream, &graph); /* also after an error, to end the capture of the stream */
  TRY(status);
  if (result != 0) return luattn_fail(err, LUATTN_CUDA, "cuStreamEndCapture: CUresult %d", result);
  const int instantiated = s->instantiate(exec, graph, 0);
  CUDA(s->graph_destroy(graph));
  if (instantiated != 0) return luattn_fail(err, LUATTN_CUDA, "cuGraphInstantiateWithFlags: CUresult %d", instantiated);
  return LUATTN_OK;
}

static luattn_status read_results(suite *s, test_call *t, luattn_error *err) {
  TRY(memory_download(&s->memory, err));
  call_read(&s->memory, &t->call);
  return memory_unchanged(&s->memory, err);
}

/* Replays the graph while the arguments are overwritten. */
static luattn_status replay(suite *s, test_call *t, void *exec, luattn_error *err) {
  const test_call kept = *t;
  memset(&t->call, 0xff, sizeof t->call);
  memset(&t->forward, 0xff, sizeof t->forward);
  memset(&t->backward, 0xff, sizeof t->backward);
  int result = 0;
  for (int i = 0; i < REPLAYS && result == 0; i++) result = s->replay(exec, s->stream);
  const luattn_status status = luattn_synchronize(s->driver, 0, s->stream, err);
  *t = kept;
  CUDA(result);
  TRY(status);
  return read_results(s, t, err);
}

static void copy_values(array *to, const array *from) {
  if (to->storage != NULL) memcpy(to->storage, from->storage, array_bytes(from));
}

/* Writes new values into the existing arrays. */
static luattn_status refill(cli_problem *p, const cli_options *o, luattn_error *err) {
  cli_problem other;
  TRY(problem_read(p->spec, o, true, &other, err));
  array *const to[] = {&p->q, &p->k, &p->v, &p->dout, &p->dlse};
  const array *const from[] = {&other.q, &other.k, &other.v, &other.dout, &other.dlse};
  for (int i = 0; i < COUNT(to); i++) copy_values(to[i], from[i]);
  for (size_t i = 0; i < p->info.num_inputs; i++) copy_values(&p->input[i], &other.input[i]);
  problem_free(&other);
  return LUATTN_OK;
}

static void copy_results(const test_call *t, cli_result *to) {
  const cli_result *from = &t->result;
  array *const arrays[] = {&to->o, &to->lse, &to->saved, &to->dq, &to->dk, &to->dv, &to->scalar_grads};
  const array *const values[] = {&from->o,  &from->lse, &from->saved,       &from->dq,
                                 &from->dk, &from->dv,  &from->scalar_grads};
  for (int i = 0; i < COUNT(arrays); i++) copy_values(arrays[i], values[i]);
  for (int i = 0; i < 12; i++) copy_values(&to->input_grad[i], &from->input_grad[i]);
}

static void compare_bits(check_report *r, const char *name, const array *replayed, const array *direct) {
  if (direct->storage == NULL) return;
  check_add(r, name, memcmp(replayed->storage, direct->storage, array_bytes(direct)) != 0, 0);
}

/* Stores the graph's results in `replayed`, and those of direct launches in t->result. */
static luattn_status one_round(suite *s, test_call *t, void *exec, cli_result *replayed, check_report *report,
                               luattn_error *err) {
  memory *m = &s->memory;
  call_write(m, &t->call);
  TRY(memory_upload(m, err));
  TRY(replay(s, t, exec, err));
  copy_results(t, replayed);
  TRY(memory_upload(m, err));
  TRY(launch_both(s, t, NULL, err));
  TRY(read_results(s, t, err));
  TRY(check_results(&t->problem, replayed, true, report, err));
  compare_bits(report, "o, bits", &replayed->o, &t->result.o);
  compare_bits(report, "lse, bits", &replayed->lse, &t->result.lse);
  compare_bits(report, "dk, bits", &replayed->dk, &t->result.dk);
  compare_bits(report, "dv, bits", &replayed->dv, &t->result.dv);
  return LUATTN_OK;
}

static luattn_status rounds(suite *s, test_call *t, cli_options o, cli_result *replayed, check_report *report,
                            luattn_error *err) {
  void *exec = NULL;
  TRY(capture(s, t, &exec, err));
  luattn_status status = memory_download(&s->memory, err);
  if (status == LUATTN_OK) status = memory_unchanged(&s->memory, err); /* the capture must run nothing */
  for (int i = 0; i < ROUNDS && status == LUATTN_OK && report->failed == 0; i++) {
    if (i > 0) {
      o.seed++;
      status = refill(&t->problem, &o, err);
    }
    if (status == LUATTN_OK) status = one_round(s, t, exec, replayed, report, err);
  }
  CUDA(s->exec_destroy(exec));
  return status;
}

/* Places tensors and workspaces. Asking for the workspace size compiles and loads kernels without running
 * them. */
static luattn_status place(suite *s, test_call *t, luattn_error *err) {
  memory *m = &s->memory;
  memory_clear(m);
  TRY(call_place(m, &t->problem, &t->result, true, NULL, 0, &t->call, err));
  call_write(m, &t->call);
  t->forward = t->backward = t->call.args;
  TRY(call_workspace(m, s->engine, t->spec, LUATTN_FORWARD, &t->forward, err));
  TRY(call_workspace(m, s->engine, t->spec, LUATTN_BACKWARD, &t->backward, err));
  return memory_upload(m, err);
}

static luattn_status run_case(suite *s, const luattn_spec *spec, const cli_options *o, check_report *report,
                              luattn_error *err) {
  test_call t = {.spec = spec};
  cli_result replayed = {0};
  TRY(problem_read(spec, o, true, &t.problem, err));
  const DLDataType storage = dtype_dl(t.problem.dtype), real = dtype_dl(LUATTN_F32);
  luattn_status status = result_new(&t.problem, storage, real, true, &t.result, err);
  if (status == LUATTN_OK) status = result_new(&t.problem, storage, real, true, &replayed, err);
  if (status == LUATTN_OK) status = place(s, &t, err);
  if (status == LUATTN_OK) status = rounds(s, &t, *o, &replayed, report, err);
  result_free(&t.result), result_free(&replayed);
  problem_free(&t.problem);
  return status;
}

/* Returns false after a device fault, which no later call in this process survives. */
static bool run_options(suite *s, const char *name, const luattn_spec *spec, const cli_options *o) {
  char title[256];
  check_report report = {0};
  luattn_error err;
  snprintf(title, sizeof title, "%s %s %s%s", name, o->dtype, o->shape, o->skip != NULL ? " skip" : "");
  if (s->only != NULL && strstr(title, s->only) == NULL) return true;
  const luattn_status status = run_case(s, spec, o, &report, &err);
  const bool failed = status != LUATTN_OK || report.failed > 0;
  s->failed += failed, s->passed += !failed;
  if (status != LUATTN_OK)
    printf("%s\n  %s\n", title, err.message);
  else if (failed || s->verbose)
    check_print(title, &report);
  fflush(stdout);
  return status != LUATTN_CUDA;
}

/* The engine keeps kernels of a spec, so the spec lives as long as the process. Returns NULL, counted as a
 * failure, if the spec cannot be loaded. */
static luattn_spec *load_spec(suite *s, const char *name) {
  char path[4096];
  luattn_spec *spec = NULL;
  luattn_error err;
  snprintf(path, sizeof path, "%s/%s.lua", s->examples, name);
  if (luattn_spec_load(path, NULL, &spec, &err) == LUATTN_OK) return spec;
  printf("%s\n  %s\n", name, err.message);
  s->failed++;
  return NULL;
}

static bool run_spec(suite *s, const char *name) {
  const luattn_spec *spec = load_spec(s, name);
  bool alive = true;
  for (int i = 0; i < COUNT(dtypes) * COUNT(shapes) && spec != NULL && alive; i++) {
    const cli_options o = {.dtype = dtypes[i / COUNT(shapes)], .shape = shapes[i % COUNT(shapes)], .seed = 1 + 100 * i};
    alive = run_options(s, name, spec, &o);
  }
  return alive;
}

static bool run_extra(suite *s, const struct extra *e, bool can_skip) {
  if (e->skip != NULL && !can_skip) return true;
  const luattn_spec *spec = load_spec(s, e->example);
  const cli_options o = {.dtype = e->dtype, .shape = e->shape, .skip = e->skip, .seed = 7};
  return spec == NULL || run_options(s, e->example, spec, &o);
}

static luattn_status run_all(suite *s, luattn_error *err) {
  TRY(load_functions(s, err));
  CUDA(s->context_retain(&s->context, 0));
  CUDA(s->context_push(s->context));
  CUDA(s->stream_create(&s->stream, STREAM_NON_BLOCKING));
  TRY(memory_open(s->driver, BLOCK_BYTES, &s->memory, err));
  luattn_device_info device;
  TRY(luattn_device_get_info(s->driver, 0, &device, err));
  bool alive = true;
  for (int i = 0; i < COUNT(examples) && alive; i++) alive = run_spec(s, examples[i]);
  for (int i = 0; i < COUNT(extras) && alive; i++) alive = run_extra(s, &extras[i], device.arch == 90);
  if (alive) CUDA(s->stream_destroy(s->stream));
  return LUATTN_OK;
}

int main(int argc, char **argv) {
  suite s = {.examples = "examples"};
  luattn_error err;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--verbose") == 0)
      s.verbose = true;
    else if (i + 1 < argc && strcmp(argv[i], "--examples") == 0)
      s.examples = argv[++i];
    else if (i + 1 < argc && strcmp(argv[i], "--only") == 0)
      s.only = argv[++i];
    else
      return 2;
  }
  if (luattn_engine_open(NULL, &s.engine, &err) != LUATTN_OK) {
    printf("skipped: %s\n", err.message);
    return 77;
  }
  s.driver = luattn_engine_driver(s.engine);
  if (run_all(&s, &err) != LUATTN_OK) {
    printf("%s\n", err.message);
    s.failed++;
  }
  printf("%d passed, %d failed\n", s.passed, s.failed);
  memory_close(&s.memory);
  if (s.context != NULL) (void)s.context_release(0);
  luattn_engine_close(s.engine);
  return s.failed > 0 || s.passed == 0;
}
