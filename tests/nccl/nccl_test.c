/* nccl_test.c: libluattn_nccl.so over fake_nccl.c and the PTX machine: transfers, additions, errors, and both passes of one
 * rank beside the CPU. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/nccl.h"
#include "tests/ptx/arrays.h"

enum { HEADS = 2, DIM = 16, CHUNKS = 2, ROWS = 128, COUNT = 1000 };

static int comm; /* any address will do */

static void enter_context(void) {
  void *cuda = dlopen(getenv("LUATTN_LIBCUDA"), RTLD_NOW), *context;
  int (*retain)(void **, int), (*push)(void *);
  need(cuda != NULL, "libcuda");
  *(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
  *(void **)&push = dlsym(cuda, "cuCtxPushCurrent_v2");
  need(retain(&context, 0) == 0 && push(context) == 0, "context");
}

static void *function_of(const char *name) {
  void *cuda = dlopen(getenv("LUATTN_LIBCUDA"), RTLD_NOW), *found = cuda != NULL ? dlsym(cuda, name) : NULL;
  need(found != NULL, name);
  return found;
}

static void *new_stream(void) {
  void *stream;
  int (*create)(void **, unsigned);
  *(void **)&create = function_of("cuStreamCreate");
  need(create(&stream, 0) == 0, "cuStreamCreate");
  return stream;
}

static void drop_stream(void *stream) {
  int (*destroy)(void *);
  *(void **)&destroy = function_of("cuStreamDestroy_v2");
  need(destroy(stream) == 0, "cuStreamDestroy");
}

static void check_errors(void) {
  luattn_transport t = {.struct_size = sizeof t - sizeof(void *)};
  need(luattn_nccl_open(&comm, &t, &err) == LUATTN_INVALID, "a struct without its last function");
  need(strstr(err.message, "luattn_transport: struct_size is") != NULL, err.message);
  t.struct_size = sizeof t;
  char *nccl = strdup(getenv("LUATTN_NCCL"));
  setenv("LUATTN_NCCL", "/nowhere/libnccl.so.2", 1);
  need(luattn_nccl_open(&comm, &t, &err) == LUATTN_UNSUPPORTED, "a library that is not there");
  need(strstr(err.message, "luattn_nccl_open: cannot load /nowhere/libnccl.so.2") != NULL, err.message);
  setenv("LUATTN_NCCL", getenv("LUATTN_LIBCUDA"), 1);
  need(luattn_nccl_open(&comm, &t, &err) == LUATTN_UNSUPPORTED, "another library");
  need(strstr(err.message, "there is no ncclGroupStart; take NCCL 2.7 or later") != NULL, err.message);
  setenv("LUATTN_NCCL", nccl, 1);
  need(luattn_nccl_open(NULL, &t, &err) == LUATTN_INVALID, "no communicator");
  free(nccl);
}

static void check_functions(const luattn_transport *t) {
  for (kind k = F64; k <= F32; ++k) {
    array a, b;
    make(&a, k, 1, (int64_t[]){COUNT}), make(&b, k, 1, (int64_t[]){COUNT});
    for (size_t i = 0; i < COUNT; ++i) put(k, a.host, i, (double)i), put(k, b.host, i, 0.5);
    send(&a), send(&b);
    const luattn_dtype type = k == F64 ? LUATTN_F64 : LUATTN_F32;
    need(t->add(t->self, a.device, b.device, COUNT - 1, type, NULL, &err) == LUATTN_OK, err.message);
    need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
    fetch(&a);
    for (size_t i = 0; i < COUNT; ++i) need(get(k, a.host, i) == (double)i + (i < COUNT - 1 ? 0.5 : 0), "a sum");
    need(t->send(t->self, 0, a.device, 64, NULL, &err) == LUATTN_OK, err.message);
    need(t->receive(t->self, 0, b.device, 64, NULL, &err) == LUATTN_OK, err.message);
    need(t->finish(t->self, NULL, &err) == LUATTN_OK, err.message);
    fetch(&b);
    need(get(k, b.host, 1) == 1.5, "what was sent");
    need(t->finish(t->self, NULL, &err) == LUATTN_OK, "nothing on its way");
    need(t->sum(t->self, a.device, COUNT, type, NULL, &err) == LUATTN_OK, err.message);
    setenv("FAKE_NCCL_FAILS", "1", 1);
    need(t->send(t->self, 0, a.device, 64, NULL, &err) == LUATTN_CUDA, "NCCL's own error");
    need(strstr(err.message, "ncclSend: unhandled system error (2)") != NULL, err.message);
    unsetenv("FAKE_NCCL_FAILS"); /* the group has been left */
    drop(&a), drop(&b);
  }
}

typedef luattn_status pass_function(luattn_engine *, const luattn_spec *, const luattn_args *,
                                    const luattn_parallel_call *, void *, luattn_error *);
static pass_function *const functions[] = {luattn_parallel_forward, luattn_parallel_backward};

/* A call in a CUDA graph is refused, on either stream. */
static void check_capture(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass, const luattn_args *args,
                          luattn_parallel_call call) {
  int (*begin)(void *, int), (*end)(void *, void **);
  void *graph, *stream = new_stream();
  *(void **)&begin = function_of("cuStreamBeginCapture_v2"), *(void **)&end = function_of("cuStreamEndCapture");
  need(begin(stream, 0) == 0, "a capture");
  need(functions[pass](engine, spec, args, &call, stream, &err) == LUATTN_UNSUPPORTED, "a captured stream");
  need(strstr(err.message, "luattn_parallel: stream: is being captured into a CUDA graph") != NULL, err.message);
  call.copies = stream;
  need(functions[pass](engine, spec, args, &call, NULL, &err) == LUATTN_UNSUPPORTED, "a captured stream of copies");
  need(strstr(err.message, "luattn_parallel: copies: is being captured") != NULL, err.message);
  need(end(stream, &graph) == 0, "the capture's end");
  drop_stream(stream);
}

enum { Q, K, V, DOUT, O, DQ, DK, DV, TENSORS };

static void check_passes(const luattn_transport *t, luattn_engine *engine) {
  static const char text[] = "return attention { name = 'one', score_mod = alibi(), block_mask = causal() }";
  static const int ranks[CHUNKS] = {0, 0};
  const int64_t shape[4] = {1, HEADS, CHUNKS * ROWS, DIM};
  luattn_spec *spec;
  array a[TENSORS], lse;
  DLTensor host[TENSORS], host_lse;
  double *want[TENSORS], *want_lse = calloc(HEADS * CHUNKS * ROWS, sizeof *want_lse);
  need(luattn_spec_load_text("one", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, err.message);
  make(&lse, F32, 3, shape), send(&lse);
  host_lse = lse.t, host_lse.data = want_lse, host_lse.dtype.bits = 64, host_lse.device = (DLDevice){kDLCPU, 0};
  for (int i = 0; i < TENSORS; ++i) {
    make(&a[i], F32, 4, shape);
    want[i] = calloc(a[i].count, sizeof(double));
    for (size_t j = 0; j < a[i].count; ++j) {
      put(F32, a[i].host, j, i <= DOUT ? drawn() : NAN);
      want[i][j] = get(F32, a[i].host, j);
    }
    send(&a[i]);
    host[i] = a[i].t, host[i].data = want[i], host[i].dtype.bits = 64, host[i].device = (DLDevice){kDLCPU, 0};
  }
  luattn_args args = {.struct_size = sizeof args,
                      .q = &host[Q],
                      .k = &host[K],
                      .v = &host[V],
                      .o = &host[O],
                      .lse = &host_lse,
                      .dout = &host[DOUT],
                      .dq = &host[DQ],
                      .dk = &host[DK],
                      .dv = &host[DV]};
  need(luattn_cpu_forward(spec, &args, &err) == LUATTN_OK && luattn_cpu_backward(spec, &args, &err) == LUATTN_OK,
       "cpu");
  args.q = &a[Q].t, args.k = &a[K].t, args.v = &a[V].t, args.o = &a[O].t, args.lse = &lse.t, args.dout = &a[DOUT].t;
  args.dq = &a[DQ].t, args.dk = &a[DK].t, args.dv = &a[DV].t;
  luattn_parallel_call call = {
      .struct_size = sizeof call, .chunks = CHUNKS, .chunk_rows = ROWS, .rank_of = ranks, .transport = t};
  call.copies = new_stream();
  for (luattn_pass pass = LUATTN_FORWARD; pass <= LUATTN_BACKWARD; ++pass) {
    size_t size;
    array memory;
    need(luattn_parallel_workspace_size(engine, spec, pass, &args, &call, &size, &err) == LUATTN_OK, err.message);
    make(&memory, F32, 1, (int64_t[]){(int64_t)size / 4 + 64});
    call.workspace = (void *)(((uintptr_t)memory.device + 255) / 256 * 256), call.workspace_size = size;
    check_capture(engine, spec, pass, &args, call);
    need(functions[pass](engine, spec, &args, &call, NULL, &err) == LUATTN_OK, err.message);
    need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
    drop(&memory);
  }
  for (int i = O; i < TENSORS; ++i) {
    fetch(&a[i]);
    for (size_t j = 0; j < a[i].count; ++j) need(fabs(get(F32, a[i].host, j) - want[i][j]) < 1e-4, "a result");
  }
  for (int i = 0; i < TENSORS; ++i) drop(&a[i]), free(want[i]);
  drop(&lse), free(want_lse);
  drop_stream(call.copies);
  luattn_spec_free(spec);
}

int main(void) {
  luattn_transport transport = {.struct_size = sizeof transport};
  const luattn_engine_options options = {.struct_size = sizeof options, .family = 1 + LUATTN_SIMT};
  luattn_engine *engine;
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, err.message);
  driver = luattn_engine_driver(engine);
  enter_context();
  check_errors();
  need(luattn_nccl_open(&comm, &transport, &err) == LUATTN_OK, err.message);
  need(transport.rank == 0 && transport.ranks == 1, "the communicator's ranks");
  check_functions(&transport);
  check_passes(&transport, engine);
  luattn_nccl_close(&transport);
  luattn_nccl_close(&transport);
  luattn_engine_close(engine);
  return 0;
}
