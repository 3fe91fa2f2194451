/* fuzz_calls.c: takes arbitrary bytes as the arguments of calls on the CPU: forward, backward and weights of packed
 * sequences, forward over pages, and new rows. Offsets, used lengths, numbers of pages, sizes, strides and which
 * tensors there are may be anything; tensors lie in allocations of their own, so that AddressSanitizer sees what leads
 * out of them. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/engine.h"
#include "tests/fuzz/fuzz.h"

enum { MOST = 16, TENSORS = 16 };
static const char *const texts[] = {"return attention { block_mask = causal() }",
                                    "return attention { online_func = online_retention,\n"
                                    "  inputs = { x = { axes = {'h', 'q'}, dtype = 'f64', grad = true }, y = { axes = "
                                    "{'b', 'kv'}, dtype = 'f64', grad = true } },\n"
                                    "  score_mod = function(s, b, h, q, kv) return s + x[{h, q}] * y[{b, kv}] end }",
                                    "return attention { inputs = { y = { axes = {'kv'}, dtype = 'f64' } }, key_mod = "
                                    "function(x, b, h, pos, d) return x * (1 + y[pos]) end }"};
enum { SPECS = sizeof texts / sizeof *texts };
static luattn_spec *specs[SPECS];
static luattn_engine *engine;

typedef struct bytes {
  const uint8_t *at;
  size_t left;
} bytes;
static unsigned take(bytes *b) { return b->left > 0 ? (--b->left, *b->at++) : 0; }
/* Mostly a small number, now and then any. */
static int32_t number(bytes *b) {
  const unsigned x = take(b);
  if (x < 240) return (int32_t)(x % 24) - (x > 200);
  uint32_t any = 0;
  for (int i = 0; i < 4; ++i) any = any << 8 | take(b);
  return (int32_t)any;
}
static int64_t size_of(bytes *b, int64_t usual) {
  const unsigned x = take(b);
  return x < 230 ? usual : x < 250 ? (int64_t)(x % 8) : x == 250 ? INT64_C(1) << 62 : x == 251 ? -1 : number(b);
}

typedef struct all {
  DLTensor t[TENSORS];
  int64_t shape[TENSORS][8], strides[TENSORS][8];
  int count;
} all;

/* A tensor, or NULL. Its memory is what its shape says if that is contiguous and small; others are refused. */
static const DLTensor *tensor(all *a, bytes *b, int ndim, const int64_t *usual, bool integers) {
  const unsigned how = take(b);
  if (how == 255 || a->count == TENSORS) return NULL;
  DLTensor *t = &a->t[a->count];
  int64_t *shape = a->shape[a->count], *strides = a->strides[a->count], elements = 1;
  *t = (DLTensor){.device = {kDLCPU, 0},
                  .ndim = how == 254 ? (int)take(b) % 8 : ndim,
                  .dtype = {integers ? kDLInt : kDLFloat, integers ? 32 : 64, 1},
                  .shape = shape};
  a->count++;
  for (int i = 0; i < 8; ++i) shape[i] = i < ndim ? size_of(b, usual[i]) : 1, strides[i] = 1;
  bool small = true;
  for (int i = 0; i < t->ndim; ++i)
    small &= shape[i] >= 0 && shape[i] <= 64 && elements <= 4096, elements *= small ? shape[i] : 1;
  const size_t size = integers ? 4 : 8;
  t->data = calloc((size_t)elements + (elements == 0), size);
  if (how == 253) t->shape = NULL;
  if (how == 252) { /* strides of its own: broadcast, or of the same elements in another order, which stay inside */
    int64_t next = 1;
    for (int i = t->ndim - 1; i >= 0; --i) strides[i] = take(b) % 4 == 0 ? 0 : next, next *= small ? shape[i] : 1;
    t->strides = strides;
  }
  if (!small) t->data = (free(t->data), NULL);
  for (int64_t i = 0; integers && small && i < elements; ++i) ((int32_t *)t->data)[i] = number(b);
  return t;
}

/* Shapes of the new rows of a call. */
typedef struct new_shapes {
  int ndim;
  const int64_t *rows;
} new_shapes;

static void append(bytes *b, all *a, const luattn_spec *spec, const luattn_args *args, new_shapes shape) {
  luattn_error err;
  const luattn_kernel *kernel;
  const luattn_append_args append = {.struct_size = sizeof append,
                                     .k = args->k,
                                     .v = args->v,
                                     .batch = args->batch,
                                     .inputs = args->inputs,
                                     .num_inputs = args->num_inputs,
                                     .new_k = tensor(a, b, shape.ndim, shape.rows, false),
                                     .new_v = tensor(a, b, shape.ndim, shape.rows, false)};
  if (luattn_engine_kernel(engine, spec, LUATTN_FORWARD, args, &kernel, &err) == LUATTN_OK)
    fuzz_expect(luattn_append(kernel, &append, NULL, &err), LUATTN_INVALID, LUATTN_UNSUPPORTED);
}

static void run(bytes *b) {
  all a = {.count = 0};
  luattn_error err;
  luattn_batch *batch = NULL;
  const unsigned kind = take(b), entries = 1 + take(b) % 3;
  const luattn_spec *spec = specs[take(b) % SPECS];
  const bool packed = kind & 1, paged = kind & 2;
  const int64_t rows = take(b) % MOST, keys = take(b) % MOST, page = 1 + take(b) % 4, pages = 1 + take(b) % 4,
                n = entries, ends = n + 1, heads = 2, dim = 4;
  const int64_t q[] = {rows, heads, dim}, dense_q[] = {n, heads, rows, dim}, k[] = {keys, 1, dim},
                in_pages[] = {pages, 1, page, dim}, lse[] = {heads, rows}, dense_lse[] = {n, heads, rows},
                saved[] = {1, heads, rows}, dense_saved[] = {1, n, heads, rows}, table[] = {n, pages},
                w[] = {n, heads, rows, keys}, new_rows[] = {n, 1, rows, dim}, packed_new[] = {rows, 1, dim};
  luattn_batch_options o = {.struct_size = sizeof o,
                            .max_seqlen_q = take(b) % 4 == 0 ? number(b) : 0,
                            .max_seqlen_k = take(b) % 4 == 0 ? number(b) : 0};
  if (packed) o.cu_seqlens_q = tensor(&a, b, 1, &ends, true);
  if (packed && !paged) o.cu_seqlens_k = tensor(&a, b, 1, &ends, true);
  if (paged || kind & 4) o.seqused_k = tensor(&a, b, 1, &n, true);
  if (packed && kind & 8) o.seqused_q = tensor(&a, b, 1, &n, true);
  if (paged && kind & 16) o.block_table = tensor(&a, b, 2, table, true);
  if (luattn_batch_open(&o, &batch, &err) == LUATTN_OK) {
    const DLTensor *tk = tensor(&a, b, paged ? 4 : 3, paged ? in_pages : k, false),
                   *tv = kind & 128 ? tk : tensor(&a, b, paged ? 4 : 3, paged ? in_pages : k, false);
    const DLTensor *tq = tensor(&a, b, packed ? 3 : 4, packed ? q : dense_q, false),
                   *to = tensor(&a, b, packed ? 3 : 4, packed ? q : dense_q, false);
    const luattn_input inputs[] = {
        {"x", tensor(&a, b, 2, lse, false), NULL},
        {"y",
         tensor(&a, b, spec == specs[1] ? 2 : 1, spec == specs[1] ? (int64_t[]){n, keys} : (int64_t[]){keys}, false),
         NULL}};
    luattn_args args = {.struct_size = sizeof args,
                        .q = tq,
                        .k = tk,
                        .v = tv,
                        .o = to,
                        .batch = batch,
                        .num_threads = 1,
                        .decode = (int)(take(b) % 5) - 1,
                        .keys_modified = spec == specs[2] && paged,
                        .inputs = spec == specs[1] ? inputs : inputs + 1,
                        .num_inputs = spec == specs[0]   ? 0
                                      : spec == specs[1] ? 2
                                                         : 1};
    if (spec == specs[1])
      args.saved = tensor(&a, b, packed ? 3 : 4, packed ? saved : dense_saved, false);
    else
      args.lse = tensor(&a, b, packed ? 2 : 3, packed ? lse : dense_lse, false);
    const unsigned what = take(b) % 4;
    if (what == 3 && paged) { /* new rows */
      append(b, &a, spec, &args, packed ? (new_shapes){3, packed_new} : (new_shapes){4, new_rows});
    } else if (what == 2) {
      const DLTensor *weights = tensor(&a, b, 4, w, false);
      if (weights != NULL)
        fuzz_expect(luattn_weights(engine, spec, &args, weights, NULL, &err), LUATTN_INVALID, LUATTN_UNSUPPORTED);
    } else {
      args.dout = tensor(&a, b, 3, q, false),
      args.dlse = what == 1 && take(b) % 2 ? tensor(&a, b, 2, lse, false) : NULL;
      args.dq = tensor(&a, b, 3, q, false), args.dk = tensor(&a, b, 3, k, false), args.dv = tensor(&a, b, 3, k, false);
      fuzz_expect((what == 1 ? luattn_backward : luattn_forward)(engine, spec, &args, NULL, &err), LUATTN_INVALID,
                  LUATTN_UNSUPPORTED);
    }
  }
  luattn_batch_close(batch);
  for (int i = 0; i < a.count; ++i) free(a.t[i].data);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  luattn_error err;
  const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU};
  if (luattn_engine_open(&options, &engine, &err) != LUATTN_OK) abort();
  for (int i = 0; i < SPECS; ++i)
    if (luattn_spec_load_text("fuzz.lua", texts[i], strlen(texts[i]), NULL, &specs[i], &err) != LUATTN_OK) abort();
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  bytes b = {data, size};
  run(&b);
  return 0;
}
