#include "tests/ptx/arrays.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

luattn_driver *driver;
luattn_error err;
static uint64_t seed = 0x9e3779b97f4a7c15u;

void need(bool ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "%s: %s\n", what, err.message);
  exit(1);
}
double drawn(void) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (double)(seed >> 40) / (1 << 23) - 1;
}

/* ---- storage types ---- */

const char *const kind_name[] = {"f64", "f32", "bf16", "f16", "i32"};
const double kind_unit[] = {0x1p-53, 0x1p-24, 0x1p-9, 0x1p-12, 0};
static const size_t kind_size[] = {8, 4, 2, 2, 4};
static const DLDataType kind_type[] = {
    {kDLFloat, 64, 1}, {kDLFloat, 32, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 16, 1}, {kDLInt, 32, 1}};

void put(kind k, void *to, size_t at, double x) {
  const float f = (float)x;
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if (k == F64) ((double *)to)[at] = x;
  if (k == F32) ((float *)to)[at] = f;
  if (k == I32) ((int32_t *)to)[at] = (int32_t)x;
  if (k == BF16) ((uint16_t *)to)[at] = (uint16_t)(isnan(x) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  if (k == F16) { /* magnitudes are at most 2; subnormals become 0 */
    const int exponent = (int)(bits >> 23 & 255) - 127;
    uint32_t half = isnan(x) ? 0x7e00 : exponent < -14 ? 0 : (uint32_t)(exponent + 15) << 10 | (bits >> 13 & 1023);
    if (!isnan(x) && exponent >= -14) half += (bits >> 12 & 1) && ((bits & 0xfff) != 0 || (half & 1));
    ((uint16_t *)to)[at] = (uint16_t)(half | (bits >> 16 & 0x8000));
  }
}
double get(kind k, const void *from, size_t at) {
  if (k == F64) return ((const double *)from)[at];
  if (k == F32) return (double)((const float *)from)[at];
  if (k == I32) return ((const int32_t *)from)[at];
  const uint16_t x = ((const uint16_t *)from)[at];
  float f;
  uint32_t bits = (uint32_t)x << 16;
  if (k == F16) {
    const uint32_t exponent = x >> 10 & 31, mantissa = x & 1023;
    if (exponent == 0) return (x >> 15 ? -1 : 1) * ldexp((double)mantissa, -24);
    bits = (uint32_t)(x >> 15) << 31 | (exponent == 31 ? 255 : exponent + 112) << 23 | mantissa << 13;
  }
  memcpy(&f, &bits, sizeof f);
  return (double)f;
}

/* ---- arrays on both sides ---- */

void make(array *a, kind k, int ndim, const int64_t *shape) {
  *a = (array){.k = k, .count = 1};
  for (int i = 0; i < ndim; ++i) a->shape[i] = shape[i], a->count *= (size_t)shape[i];
  const size_t size =
      (a->count > 0 ? a->count : 1) * kind_size[k]; /* no more, so that a read behind the last element is found */
  a->host = a->device = calloc(1, size);
  if (driver != NULL) need(luattn_device_alloc(driver, 0, size, &a->device, &err) == LUATTN_OK, "alloc");
  a->t = (DLTensor){
      .data = a->device, .device = {driver != NULL ? kDLCUDA : kDLCPU, 0}, .ndim = ndim, .dtype = kind_type[k]};
}
void fill(array *a, double x) {
  for (size_t i = 0; i < a->count; ++i) put(a->k, a->host, i, x);
  send(a);
}
void send(array *a) {
  a->t.shape = a->shape;
  if (driver == NULL) return;
  need(luattn_copy_to_device(driver, 0, a->device, a->host, a->count * kind_size[a->k], &err) == LUATTN_OK, "copy");
}
void fetch(array *a) {
  if (driver == NULL) return;
  need(luattn_copy_to_host(driver, 0, a->host, a->device, a->count * kind_size[a->k], &err) == LUATTN_OK, "copy");
}
void drop(array *a) {
  if (driver != NULL) need(luattn_device_free(driver, 0, a->device, &err) == LUATTN_OK, "free");
  free(a->host);
}

bool is_small_device(void) {
  luattn_device_info info;
  need(luattn_device_get_info(driver, 0, &info, &err) == LUATTN_OK, "device");
  return info.multiprocessors <= 16;
}
