#include <math.h>
#include <string.h>

#include "gen/cpu/cpu.h"

static double half_to_double(uint16_t h) {
  const int sign = h >> 15, exponent = (h >> 10) & 31, mantissa = h & 1023;
  double x;
  if (exponent == 31) x = mantissa ? NAN : INFINITY;
  else if (exponent == 0) x = ldexp(mantissa, -24);
  else x = ldexp(mantissa + 1024, exponent - 25);
  return sign ? -x : x;
}

static double bf16_to_double(uint16_t h) {
  const uint32_t bits = (uint32_t)h << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return (double)x;
}

/* Round to nearest even at 11 bits; subnormals and overflow as IEEE 754 asks. */
static uint16_t double_to_half(double x) {
  const uint16_t sign = signbit(x) ? 0x8000u : 0u;
  const double y = fabs(x);
  if (isnan(x)) return (uint16_t)(sign | 0x7e00u);
  if (y >= 65520.0) return (uint16_t)(sign | 0x7c00u);
  int exponent;
  frexp(y, &exponent); /* y = m * 2^exponent, m in [0.5, 1) */
  if (exponent < -13) exponent = -13;
  const double units = nearbyint(ldexp(y, 11 - exponent)); /* in [0, 2048] */
  /* A carry into 2048, or out of the subnormals, is right because the encoding is monotone. */
  const int code = exponent == -13 && units < 1024 ? (int)units : ((exponent + 14) << 10) + ((int)units - 1024);
  return (uint16_t)(sign | (uint16_t)code);
}

static uint16_t double_to_bf16(double x) {
  if (isnan(x)) return 0x7fc0u;
  const float f = (float)x;
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if ((double)f != x) {
    /* f was rounded once: make it round to odd, so that the second rounding is as if from x itself. */
    const int too_far = fabs((double)f) > fabs(x);
    if (too_far) bits -= 1;
    bits |= 1;
  }
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return (uint16_t)((isinf(f) ? bits : rounded) >> 16);
}

void round_all(luattn_dtype type, double *x, int n) {
  for (int i = 0; i < n && type != LUATTN_F64; i++) {
    if (type == LUATTN_F32) x[i] = (double)(float)x[i];
    else if (type == LUATTN_F16) x[i] = half_to_double(double_to_half(x[i]));
    else x[i] = bf16_to_double(double_to_bf16(x[i]));
  }
}

static char *view_at(const cpu_view *v, const int64_t *index) {
  int64_t at = 0;
  for (int i = 0; i < v->ndim; i++) at += index[i] * v->stride[i];
  return v->data + at * (v->bits / 8);
}

double view_get(const cpu_view *v, const int64_t *index) {
  const char *at = view_at(v, index);
  double f64;
  float f32;
  uint16_t u16;
  int32_t i32;
  switch (v->code) {
    case kDLFloat:
      if (v->bits == 64) return memcpy(&f64, at, 8), f64;
      if (v->bits == 32) return memcpy(&f32, at, 4), (double)f32;
      return memcpy(&u16, at, 2), half_to_double(u16);
    case kDLBfloat: return memcpy(&u16, at, 2), bf16_to_double(u16);
    case kDLInt:
      return memcpy(&i32, at, 4), (double)i32;
    default: /* bool, as 8-bit unsigned */
      return *at != 0;
  }
}

void view_set(const cpu_view *v, const int64_t *index, double x) {
  char *at = view_at(v, index);
  const float f32 = (float)x;
  if (v->code == kDLBfloat) {
    const uint16_t bits = double_to_bf16(x);
    memcpy(at, &bits, 2);
  } else if (v->bits == 64) {
    memcpy(at, &x, 8);
  } else if (v->bits == 32) {
    memcpy(at, &f32, 4);
  } else {
    const uint16_t bits = double_to_half(x);
    memcpy(at, &bits, 2);
  }
}

static bool dtype_is_known(DLDataType t) {
  if (t.lanes != 1) return false;
  if (t.code == kDLFloat) return t.bits == 64 || t.bits == 32 || t.bits == 16;
  if (t.code == kDLBfloat) return t.bits == 16;
  if (t.code == kDLInt) return t.bits == 32;
  return t.bits == 8; /* bool is stored as 8 bits, whatever code a DLPack version gives it */
}

luattn_status view_open(const char *name, const DLTensor *t, int ndim, cpu_view *out, luattn_error *err) {
  if (t == NULL || t->data == NULL) return luattn_fail(err, LUATTN_INVALID, "%s: tensor is missing", name);
  if (t->device.device_type != kDLCPU) {
    return luattn_fail(err, LUATTN_INVALID, "%s: tensor is on device type %d; the CPU path needs it on the CPU", name,
                       (int)t->device.device_type);
  }
  if (t->ndim != ndim) {
    return luattn_fail(err, LUATTN_INVALID, "%s: tensor has %d dimensions, expected %d", name, t->ndim, ndim);
  }
  if (!dtype_is_known(t->dtype)) {
    return luattn_fail(err, LUATTN_INVALID, "%s: dtype (code %d, %d bits) is not one of f64, f32, f16, bf16, i32, bool", name,
                       t->dtype.code, t->dtype.bits);
  }
  *out = (cpu_view){.data = (char *)t->data + t->byte_offset, .code = t->dtype.code, .bits = t->dtype.bits, .ndim = ndim};
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    out->shape[i] = t->shape[i];
    out->stride[i] = t->strides != NULL ? t->strides[i] : stride;
    stride *= t->shape[i];
  }
  return LUATTN_OK;
}
