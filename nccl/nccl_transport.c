/* nccl_transport.c: sends and receives of NCCL in groups, and a kernel that adds. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/struct_size.h"
#include "luattn/nccl.h"

/* to[i] += from[i], in blocks of 256 threads that step over the whole. */
#define ADD_KERNEL(type, shift)                                                            \
  "// to[i] += from[i]\n.version 6.0\n.target sm_50\n.address_size 64\n"                   \
  ".visible .entry luattn_add(.param .u64 to, .param .u64 from, .param .u64 count) {\n"    \
  "  .reg .pred %p;\n  .reg .u32 %r<4>;\n  .reg .u64 %d<8>;\n  .reg ." type                \
  " %f<3>;\n"                                                                              \
  "  ld.param.u64 %d1, [to];\n  ld.param.u64 %d2, [from];\n  ld.param.u64 %d3, [count];\n" \
  "  mov.u32 %r1, %ctaid.x;\n  mov.u32 %r2, %ntid.x;\n  mov.u32 %r3, %tid.x;\n"            \
  "  mul.wide.u32 %d4, %r1, %r2;\n  cvt.u64.u32 %d5, %r3;\n  add.u64 %d4, %d4, %d5;\n"     \
  "  mov.u32 %r1, %nctaid.x;\n  mul.wide.u32 %d5, %r1, %r2;\n"                             \
  "next:\n  setp.ge.u64 %p, %d4, %d3;\n  @%p bra done;\n"                                  \
  "  shl.b64 %d6, %d4, " shift                                                             \
  ";\n  add.u64 %d7, %d2, %d6;\n  add.u64 %d6, %d1, %d6;\n"                                \
  "  ld.global." type " %f1, [%d6];\n  ld.global." type " %f2, [%d7];\n  add.rn." type     \
  " %f1, %f1, %f2;\n"                                                                      \
  "  st.global." type " [%d6], %f1;\n  add.u64 %d4, %d4, %d5;\n  bra next;\ndone:\n  ret;\n}\n"

enum {
  NCCL_INT8 = 0,
  NCCL_FLOAT32 = 7,
  NCCL_FLOAT64 = 8,
  NCCL_SUM = 0,
  F32 = 0,
  F64 = 1,
  ADD_THREADS = 256,
  ADD_BLOCKS = 512
};

/* NCCL's functions, and the driver's. */
#define NCCL_FUNCTIONS(X)                                                                         \
  X(group_start, "ncclGroupStart", int (*)(void))                                                 \
  X(group_end, "ncclGroupEnd", int (*)(void))                                                     \
  X(send, "ncclSend", int (*)(const void *, size_t, int, int, void *, void *))                    \
  X(receive, "ncclRecv", int (*)(void *, size_t, int, int, void *, void *))                       \
  X(all_reduce, "ncclAllReduce", int (*)(const void *, void *, size_t, int, int, void *, void *)) \
  X(error_text, "ncclGetErrorString", const char *(*)(int))                                       \
  X(rank, "ncclCommUserRank", int (*)(void *, int *))                                             \
  X(count, "ncclCommCount", int (*)(void *, int *))
#define CUDA_FUNCTIONS(X)                                                    \
  X(load, "cuModuleLoadData", int (*)(void **, const void *))                \
  X(function, "cuModuleGetFunction", int (*)(void **, void *, const char *)) \
  X(unload, "cuModuleUnload", int (*)(void *))                               \
  X(launch, "cuLaunchKernel",                                                \
    int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))

typedef struct nccl {
  void *comm, *module[2], *add[2];
  bool in_group;
#define MEMBER(name, symbol, type) __typeof__(type) name;
  NCCL_FUNCTIONS(MEMBER)
  CUDA_FUNCTIONS(MEMBER)
#undef MEMBER
} nccl;

static luattn_status load(const char *variable, const char *usual, void **library, luattn_error *err) {
  const char *name = getenv(variable);
  if (name == NULL || *name == 0) name = usual;
  *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (*library != NULL) return LUATTN_OK;
  const char *why = dlerror();
  return luattn_fail(err, LUATTN_UNSUPPORTED, "luattn_nccl_open: cannot load %s: %s; install it, or name it in %s",
                     name, why != NULL ? why : "not found", variable);
}

static luattn_status find(void *library, const char *symbol, void *to, luattn_error *err) {
  void *address = dlsym(library, symbol);
  if (address == NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED, "luattn_nccl_open: there is no %s; take NCCL 2.7 or later", symbol);
  memcpy(to, &address, sizeof address);
  return LUATTN_OK;
}

static luattn_status load_functions(nccl *n, luattn_error *err) {
  void *library, *cuda;
  TRY(load("LUATTN_NCCL", "libnccl.so.2", &library, err));
  TRY(load("LUATTN_LIBCUDA", "libcuda.so.1", &cuda, err));
#define FIND(name, symbol, type) TRY(find(library, symbol, &n->name, err));
  NCCL_FUNCTIONS(FIND)
#undef FIND
#define FIND(name, symbol, type) TRY(find(cuda, symbol, &n->name, err));
  CUDA_FUNCTIONS(FIND)
#undef FIND
  return LUATTN_OK;
}

static luattn_status tell(const nccl *n, const char *function, int result, luattn_error *err) {
  return result == 0 ? LUATTN_OK
                     : luattn_fail(err, LUATTN_CUDA, "%s: %s (%d)", function, n->error_text(result), result);
}

/* ---- the transport ---- */

static luattn_status enter_group(nccl *n, luattn_error *err) {
  if (n->in_group) return LUATTN_OK;
  TRY(tell(n, "ncclGroupStart", n->group_start(), err));
  n->in_group = true;
  return LUATTN_OK;
}

/* Leaves the group, whose transfers the caller then has no use of. */
static luattn_status leave(nccl *n, luattn_status status) {
  if (status != LUATTN_OK && n->in_group) n->group_end(), n->in_group = false;
  return status;
}

static luattn_status send(void *self, int to, const void *data, size_t bytes, void *stream, luattn_error *err) {
  nccl *n = self;
  TRY(enter_group(n, err));
  return leave(n, tell(n, "ncclSend", n->send(data, bytes, NCCL_INT8, to, n->comm, stream), err));
}
static luattn_status receive(void *self, int from, void *data, size_t bytes, void *stream, luattn_error *err) {
  nccl *n = self;
  TRY(enter_group(n, err));
  return leave(n, tell(n, "ncclRecv", n->receive(data, bytes, NCCL_INT8, from, n->comm, stream), err));
}
static luattn_status finish(void *self, void *stream, luattn_error *err) {
  nccl *n = self;
  (void)stream;
  if (!n->in_group) return LUATTN_OK;
  n->in_group = false;
  return tell(n, "ncclGroupEnd", n->group_end(), err);
}
static luattn_status add(void *self, void *to, const void *from, size_t count, luattn_dtype type, void *stream,
                         luattn_error *err) {
  nccl *n = self;
  const size_t blocks = (count + ADD_THREADS - 1) / ADD_THREADS;
  void *arguments[] = {&to, &from, &count};
  if (count == 0) return LUATTN_OK;
  const int result = n->launch(n->add[type == LUATTN_F64], (unsigned)(blocks < ADD_BLOCKS ? blocks : ADD_BLOCKS), 1, 1,
                               ADD_THREADS, 1, 1, 0, stream, arguments, NULL);
  return result == 0 ? LUATTN_OK : luattn_fail(err, LUATTN_CUDA, "cuLaunchKernel: adding gradients: error %d", result);
}
static luattn_status sum(void *self, void *data, size_t count, luattn_dtype type, void *stream, luattn_error *err) {
  nccl *n = self;
  const int of = type == LUATTN_F64 ? NCCL_FLOAT64 : NCCL_FLOAT32;
  return tell(n, "ncclAllReduce", n->all_reduce(data, data, count, of, NCCL_SUM, n->comm, stream), err);
}

static void close_one(nccl *n) {
  for (int i = 0; i < 2; ++i)
    if (n->module[i] != NULL) n->unload(n->module[i]);
  free(n);
}

static luattn_status load_kernels(nccl *n, luattn_error *err) {
  static const char *const text[2] = {[F32] = ADD_KERNEL("f32", "2"), [F64] = ADD_KERNEL("f64", "3")};
  for (int i = 0; i < 2; ++i) {
    int result = n->load(&n->module[i], text[i]);
    if (result == 0) result = n->function(&n->add[i], n->module[i], "luattn_add");
    if (result != 0)
      return luattn_fail(err, LUATTN_CUDA,
                         "luattn_nccl_open: cuModuleLoadData: error %d; make the communicator's device current first",
                         result);
  }
  return LUATTN_OK;
}

luattn_status luattn_nccl_open(void *comm, luattn_transport *transport, luattn_error *err) {
  static const struct_rule rule = {"luattn_transport", sizeof(luattn_transport), sizeof(luattn_transport)};
  const luattn_transport none = {.struct_size = 0};
  fail_clear(err);
  NEED(comm);
  NEED(transport);
  TRY(struct_give(&rule, "luattn_nccl_open", &none, transport, err));
  nccl *n = calloc(1, sizeof *n);
  luattn_transport made = {.struct_size = sizeof made,
                           .self = n,
                           .send = send,
                           .receive = receive,
                           .finish = finish,
                           .add = add,
                           .sum = sum};
  if (n == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_nccl_open: out of memory");
  n->comm = comm;
  luattn_status status = load_functions(n, err);
  if (status == LUATTN_OK) status = tell(n, "ncclCommUserRank", n->rank(comm, &made.rank), err);
  if (status == LUATTN_OK) status = tell(n, "ncclCommCount", n->count(comm, &made.ranks), err);
  if (status == LUATTN_OK) status = load_kernels(n, err);
  if (status == LUATTN_OK) status = struct_give(&rule, "luattn_nccl_open", &made, transport, err);
  if (status != LUATTN_OK) close_one(n);
  return status;
}

void luattn_nccl_close(luattn_transport *transport) {
  if (transport == NULL || transport->self == NULL) return;
  close_one(transport->self);
  transport->self = NULL;
}
