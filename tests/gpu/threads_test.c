/* threads_test.c: eight threads launch one engine's kernels on eight streams at once. In every bit of o, lse,
 * dk and dv the results must equal those of the same launches alone. Forward uses a new workspace in every
 * round. Together these exceed a kernel's number of counters, so that the streams' counters are used too.
 *
 * usage: gpu_threads --examples DIR [--rounds N]. Exit: 0, 1, or 77 without a GPU. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/memory.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
#define BLOCK_BYTES ((size_t)32 << 20)
enum { THREADS = 8, STEP = 256 /* bytes from one workspace to the next */ };

/* Half of the threads run the first spec, half the second. Lengths differ between threads. */
static const char *const examples[] = {"gemma2", "causal"};
static const int exact[] = {CALL_O, CALL_LSE, CALL_DK, CALL_DV};

/* The functions of libcuda that the test itself calls. A CUresult is an int; all handles are pointers. */
typedef struct cuda {
  int (*context_retain)(void **context, int device);
  int (*context_release)(int device);
  int (*context_push)(void *context);
  int (*stream_create)(void **stream, unsigned flags);
  int (*stream_destroy)(void *stream);
} cuda;

typedef struct worker {
  luattn_engine *engine;
  const luattn_spec *spec;
  cli_problem problem;
  cli_result result;
  memory memory;
  call call;
  luattn_args args[2]; /* forward and backward, each with a workspace */
  void *stream;
  int rounds;
  luattn_status status;
  luattn_error err;
} worker;

static luattn_status load_cuda(cuda *c, luattn_error *err) {
  static const char *const names[] = {"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxPushCurrent_v2",
                                      "cuStreamCreate", "cuStreamDestroy_v2"};
  const char *path = getenv("LUATTN_LIBCUDA");
  void *library = dlopen(path != NULL && *path != 0 ? path : "libcuda.so.1", RTLD_NOW | RTLD_NODELETE);
  if (library == NULL) return luattn_fail(err, LUATTN_CUDA, "dlopen: %s", dlerror());
  void *address[COUNT(names)];
  for (int i = 0; i < COUNT(names); i++) {
    address[i] = dlsym(library, names[i]);
    if (address[i] == NULL) return luattn_fail(err, LUATTN_CUDA, "libcuda has no %s", names[i]);
  }
  _Static_assert(sizeof *c == sizeof address, "one pointer a function");
  memcpy(c, address, sizeof address);
  return LUATTN_OK;
}

static luattn_status launch(worker *w, int round, void *stream, luattn_error *err) {
  luattn_args forward = w->args[0];
  forward.workspace = (char *)forward.workspace + (size_t)round * STEP;
  TRY(luattn_forward(w->engine, w->spec, &forward, stream, err));
  return luattn_backward(w->engine, w->spec, &w->args[1], stream, err);
}

/* Does everything that must not wait for other threads: loads kernels, places tensors, and computes the
 * results of this thread alone, in w->result. */
static luattn_status prepare(worker *w, const cuda *c, int number, luattn_error *err) {
  char shape[64];
  snprintf(shape, sizeof shape, "1,4,2,%d,%d,64", 200 + 37 * number, 300 - 23 * number);
  const cli_options o = {.dtype = "bf16", .shape = shape, .seed = 1 + number};
  TRY(problem_read(w->spec, &o, true, &w->problem, err));
  TRY(result_new(&w->problem, dtype_dl(LUATTN_BF16), dtype_dl(LUATTN_F32), true, &w->result, err));
  TRY(memory_open(luattn_engine_driver(w->engine), BLOCK_BYTES, &w->memory, err));
  TRY(call_place(&w->memory, &w->problem, &w->result, true, NULL, 0, &w->call, err));
  call_write(&w->memory, &w->call);
  w->args[0] = w->args[1] = w->call.args;
  size_t first; /* offset of later rounds' workspaces, after the first one */
  TRY(call_workspace(&w->memory, w->engine, w->spec, LUATTN_FORWARD, &w->args[0], err));
  TRY(memory_reserve(&w->memory, "workspaces", (size_t)w->rounds * STEP, &first, err));
  if (w->memory.device + first < (char *)w->args[0].workspace)
    return luattn_fail(err, LUATTN_INTERNAL, "the block is not filled upwards");
  TRY(call_workspace(&w->memory, w->engine, w->spec, LUATTN_BACKWARD, &w->args[1], err));
  TRY(memory_upload(&w->memory, err));
  TRY(launch(w, 0, NULL, err));
  TRY(memory_download(&w->memory, err));
  for (int i = 0; i < COUNT(exact); i++) {
    const placed *x = &w->call.slot[exact[i]];
    memcpy(w->memory.before + x->first, w->memory.after + x->first, x->bytes); /* saved for the comparison */
  }
  const int result = c->stream_create(&w->stream, 1 /* CU_STREAM_NON_BLOCKING */);
  return result == 0 ? LUATTN_OK : luattn_fail(err, LUATTN_CUDA, "cuStreamCreate: CUresult %d", result);
}

static void *work(void *arg) {
  worker *w = arg;
  for (int i = 0; i < w->rounds && w->status == LUATTN_OK; i++) w->status = launch(w, i, w->stream, &w->err);
  if (w->status == LUATTN_OK) w->status = luattn_synchronize(luattn_engine_driver(w->engine), 0, w->stream, &w->err);
  return NULL;
}

static luattn_status compare(worker *w, luattn_error *err) {
  TRY(memory_download(&w->memory, err));
  for (int i = 0; i < COUNT(exact); i++) {
    const placed *x = &w->call.slot[exact[i]];
    if (memcmp(w->memory.before + x->first, w->memory.after + x->first, x->bytes) != 0)
      return luattn_fail(err, LUATTN_INTERNAL, "slot %d differs from what one thread alone computes", exact[i]);
  }
  return LUATTN_OK;
}

static luattn_status run(worker *workers, luattn_error *err) {
  pthread_t thread[THREADS];
  int started = 0;
  while (started < THREADS && pthread_create(&thread[started], NULL, work, &workers[started]) == 0) started++;
  for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
  if (started < THREADS) return luattn_fail(err, LUATTN_NO_MEMORY, "only %d threads start", started);
  for (int i = 0; i < THREADS; i++) {
    *err = workers[i].err;
    TRY(workers[i].status);
    TRY(compare(&workers[i], err));
  }
  return LUATTN_OK;
}

static luattn_status run_all(worker *workers, const cuda *c, luattn_engine *engine, const char *folder, int rounds,
                             luattn_error *err) {
  luattn_spec *spec[COUNT(examples)];
  for (int i = 0; i < COUNT(examples); i++) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.lua", folder, examples[i]);
    TRY(luattn_spec_load(path, NULL, &spec[i],
                         err)); /* lives as long as the process, because the engine keeps its kernels */
  }
  for (int i = 0; i < THREADS; i++) {
    workers[i].engine = engine;
    workers[i].spec = spec[i % COUNT(examples)];
    workers[i].rounds = rounds;
    TRY(prepare(&workers[i], c, i, err));
  }
  return run(workers, err);
}

int main(int argc, char **argv) {
  const char *folder = "examples";
  int rounds = 400;
  luattn_engine *engine;
  luattn_error err;
  cuda c = {NULL};
  void *context;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--examples") == 0) folder = argv[i + 1];
    if (strcmp(argv[i], "--rounds") == 0) rounds = atoi(argv[i + 1]);
  }
  if (luattn_engine_open(NULL, &engine, &err) != LUATTN_OK) {
    printf("skipped: %s\n", err.message);
    return 77;
  }
  worker *workers = calloc(THREADS, sizeof *workers);
  if (workers == NULL || load_cuda(&c, &err) != LUATTN_OK || c.context_retain(&context, 0) != 0 ||
      c.context_push(context) != 0)
    return 1;
  const luattn_status status = run_all(workers, &c, engine, folder, rounds, &err);
  for (int i = 0; i < THREADS; i++) {
    if (workers[i].stream != NULL) (void)c.stream_destroy(workers[i].stream);
    memory_close(&workers[i].memory);
    result_free(&workers[i].result);
    problem_free(&workers[i].problem);
  }
  free(workers);
  (void)c.context_release(0);
  luattn_engine_close(engine);
  if (status != LUATTN_OK)
    printf("%s\n", err.message);
  else
    printf("%d threads, %d forward and backward passes each: the same bits\n", THREADS, rounds);
  return status != LUATTN_OK;
}
