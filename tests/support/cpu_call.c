#include "tests/support/cpu_call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const DLDataType F64 = {kDLFloat, 64, 1}, F32 = {kDLFloat, 32, 1}, F16 = {kDLFloat, 16, 1};
const DLDataType BF16 = {kDLBfloat, 16, 1}, I32 = {kDLInt, 32, 1}, BOOL = {kDLUInt, 8, 1};

void tensor_new(tensor *t, DLDataType type, int ndim, const int64_t *shape, layout l) {
  int order[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int i = 1; l == HEADS_LAST && ndim >= 4 && i < ndim - 1; i++) order[i] = i + 1 < ndim - 1 ? i + 1 : 1;
  const size_t size = type.bits / 8u, offset = l == PADDED ? 3 * size : 0;
  int64_t stride = 1, last = 0;
  bool empty = false;
  *t = (tensor){.t = {.device = {kDLCPU, 0}, .ndim = ndim, .dtype = type, .byte_offset = offset}};
  for (int i = ndim - 1; i >= 0; i--) {
    const int axis = order[i];
    t->shape[axis] = shape[axis];
    t->stride[axis] = stride;
    empty |= shape[axis] == 0;
    last += (shape[axis] - 1) * stride;
    stride = stride * shape[axis] + (l == PADDED && i == ndim - 1 ? 5 : 0);
  }
  const size_t bytes = offset + (empty ? 0 : ((size_t)last + 1) * size);
  t->memory = malloc(bytes > 0 ? bytes : 1);
  assert_non_null(t->memory);
  memset(t->memory, 0xff, bytes);
  t->t.data = t->memory;
}

void tensor_free(tensor *t) {
  free(t->memory);
  *t = (tensor){.memory = NULL};
}

int64_t tensor_count(const tensor *t) {
  int64_t n = 1;
  for (int i = 0; i < t->t.ndim; i++) n *= t->shape[i];
  return n;
}

static cpu_view at(const tensor *t, int64_t flat) {
  int64_t offset = 0;
  for (int i = t->t.ndim - 1; i >= 0; i--) {
    offset += flat % t->shape[i] * t->stride[i];
    flat /= t->shape[i];
  }
  const int bits = t->t.dtype.bits;
  return (cpu_view){
      .data = (char *)t->memory + t->t.byte_offset + offset * (bits / 8), .code = t->t.dtype.code, .bits = bits};
}

double tensor_get(const tensor *t, int64_t flat) {
  const cpu_view v = at(t, flat);
  return view_get(&v, NULL);
}

void tensor_set(tensor *t, int64_t flat, double x) {
  const cpu_view v = at(t, flat);
  const int32_t integer = (int32_t)(v.code == kDLInt ? x : 0);
  if (v.code == kDLInt)
    memcpy(v.data, &integer, sizeof integer);
  else if (v.code == kDLUInt)
    *v.data = x != 0;
  else
    view_set(&v, NULL, x);
}

double uniform(uint64_t *state) {
  uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

void tensor_fill(tensor *t, uint64_t seed) {
  for (int64_t i = 0, n = tensor_count(t); i < n; i++) {
    double sum = -6;
    for (int k = 0; k < 12; k++) sum += uniform(&seed);
    tensor_set(t, i, sum);
  }
}

/* Returns the tensor as an argument, with NULL strides for DENSE_NULL. */
static const DLTensor *arg(tensor *t, layout l) {
  t->t.shape = t->shape;
  t->t.strides = l == DENSE_NULL ? NULL : t->stride;
  return &t->t;
}

void call_new(call *c, const luattn_spec *spec, const int size[7], layout l, DLDataType in, DLDataType out) {
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  *c = (call){size[0],
              size[1],
              size[2],
              size[3],
              size[4],
              size[5],
              size[6],
              l,
              in,
              out,
              .args = {.struct_size = sizeof c->args}};
  const int64_t rows[] = {c->batch, c->heads, c->q_len, c->dim_v}, q[] = {c->batch, c->heads, c->q_len, c->dim};
  const int64_t k[] = {c->batch, c->heads_kv, c->kv_len, c->dim}, v[] = {c->batch, c->heads_kv, c->kv_len, c->dim_v};
  const int64_t saved[] = {(int64_t)info.num_saved, c->batch, c->heads, c->q_len};
  tensor_new(&c->q, in, 4, q, l), tensor_new(&c->k, in, 4, k, l), tensor_new(&c->v, in, 4, v, l);
  tensor_new(&c->dout, in, 4, rows, l), tensor_new(&c->dlse, out, 3, rows, l), tensor_new(&c->lse, out, 3, rows, l);
  tensor_new(&c->o, out, 4, rows, l), tensor_new(&c->saved, out, 4, saved, DENSE);
  tensor_new(&c->dq, out, 4, q, l), tensor_new(&c->dk, out, 4, k, l), tensor_new(&c->dv, out, 4, v, l);
  tensor_fill(&c->q, 1), tensor_fill(&c->k, 2), tensor_fill(&c->v, 3), tensor_fill(&c->dout, 4),
      tensor_fill(&c->dlse, 5);
  luattn_args *a = &c->args;
  a->q = arg(&c->q, l), a->k = arg(&c->k, l), a->v = arg(&c->v, l), a->o = arg(&c->o, l), a->dout = arg(&c->dout, l);
  a->dq = arg(&c->dq, l), a->dk = arg(&c->dk, l), a->dv = arg(&c->dv, l);
  if (info.has_lse) a->lse = arg(&c->lse, l), a->dlse = arg(&c->dlse, l);
  if (info.num_saved > 0) a->saved = arg(&c->saved, DENSE);
}

void call_free(call *c) {
  tensor *const all[] = {&c->q, &c->k, &c->v, &c->o, &c->lse, &c->saved, &c->dout, &c->dlse, &c->dq, &c->dk, &c->dv};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tensor_free(all[i]);
}

luattn_spec *load_text(const char *source) {
  luattn_spec *spec = NULL;
  luattn_error err;
  if (luattn_spec_load_text("test.lua", source, strlen(source), NULL, &spec, &err) != LUATTN_OK)
    fail_msg("%s", err.message);
  return spec;
}

void assert_close(const char *what, const tensor *got, const double *want, double tolerance) {
  const int64_t n = tensor_count(got);
  double biggest = 0;
  for (int64_t i = 0; i < n; i++) {
    if (isfinite(want[i])) biggest = fmax(biggest, fabs(want[i]));
  }
  for (int64_t i = 0; i < n; i++) {
    const double x = tensor_get(got, i);
    if (x == want[i] || fabs(x - want[i]) <= tolerance * biggest) continue;
    fail_msg("%s[%lld] = %.17g, expected %.17g (tolerance %g of %g)", what, (long long)i, x, want[i], tolerance,
             biggest);
  }
}

static double loss(const luattn_spec *spec, const call *c) {
  luattn_error err;
  double sum = 0;
  if (luattn_cpu_forward(spec, &c->args, &err) != LUATTN_OK) fail_msg("%s", err.message);
  for (int64_t i = 0; i < tensor_count(&c->o); i++) sum += tensor_get(&c->o, i) * tensor_get(&c->dout, i);
  for (int64_t i = 0; c->args.lse != NULL && i < tensor_count(&c->lse); i++)
    if (isfinite(tensor_get(&c->lse, i)))
      sum += tensor_get(&c->lse, i) * tensor_get(&c->dlse, i); /* of a row that keeps something */
  return sum;
}

/* With step h a central difference is off by about h^2 of a third derivative, and by 1e-16 / h of the loss. */
void assert_differences(const luattn_spec *spec, const call *c, tensor *x, const tensor *gradient) {
  const double h = 1e-5;
  for (int64_t i = 0; i < tensor_count(x); i += tensor_count(x) / 7 + 1) {
    const double at = tensor_get(x, i);
    tensor_set(x, i, at + h);
    const double high = loss(spec, c);
    tensor_set(x, i, at - h);
    const double low = loss(spec, c);
    tensor_set(x, i, at);
    const double want = (high - low) / (2 * h), got = tensor_get(gradient, i);
    if (!(fabs(got - want) <= 1e-7 * (1 + fabs(want))))
      fail_msg("element %lld: %.12g, by differences %.12g", (long long)i, got, want);
  }
}

/* Ten rounds of two multiplications, the key bumped by Weyl constants between them. */
void philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]) {
  uint32_t k[2] = {key[0], key[1]};
  memcpy(out, counter, 4 * sizeof *out);
  for (int round = 0; round < 10; round++) {
    if (round > 0) k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u;
    const uint64_t left = (uint64_t)0xD2511F53u * out[0], right = (uint64_t)0xCD9E8D57u * out[2];
    const uint32_t next[4] = {(uint32_t)(right >> 32) ^ out[1] ^ k[0], (uint32_t)right,
                              (uint32_t)(left >> 32) ^ out[3] ^ k[1], (uint32_t)left};
    memcpy(out, next, sizeof next);
  }
}
