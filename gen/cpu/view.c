/* view.c: reads and writes tensors of any type and strides as double. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/call/dtype_text.h"
#include "common/call/overlap.h"
#include "gen/cpu/cpu.h"
#include "gen/ir/scalar.h"

#define DLPACK_BOOL 6 /* kDLBool of DLPack 1.0; earlier versions use a byte of 0 or 1 */

static double half_to_double(uint16_t h) {
  const int sign = h >> 15, exponent = (h >> 10) & 31, mantissa = h & 1023;
  double x;
  if (exponent == 31)
    x = mantissa ? NAN : INFINITY;
  else if (exponent == 0)
    x = ldexp(mantissa, -24);
  else
    x = ldexp(mantissa + 1024, exponent - 25);
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
  if (y == 0) return sign; /* frexp has no exponent for 0 */
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
  const uint16_t sign = signbit(x) ? 0x8000u : 0u;
  if (isnan(x)) return (uint16_t)(sign | 0x7fc0u);
  if (fabs(x) > FLT_MAX) return (uint16_t)(sign | 0x7f80u);
  const float f = (float)x;
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if ((double)f != x) {
    /* Turns the single rounding of f into round to odd, so that the second rounding is as if from x
     * itself. */
    const int too_far = fabs((double)f) > fabs(x);
    if (too_far) bits -= 1;
    bits |= 1;
  }
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void round_all(luattn_dtype type, double *x, int n) {
  for (int i = 0; i < n && type != LUATTN_F64; i++) {
    if (type == LUATTN_F32)
      x[i] = (double)(float)x[i];
    else if (type == LUATTN_F16)
      x[i] = half_to_double(double_to_half(x[i]));
    else
      x[i] = bf16_to_double(double_to_bf16(x[i]));
  }
}

_Static_assert((int64_t)CPU_COARSENESS == INT64_C(1) << SCALAR_COARSE_BITS, "a fact said twice");

void problem_round(const cpu_problem *p, double *x, int n) {
  round_all(p->precision, x, n);
  for (int i = 0; i < n && p->coarse; i++) x[i] = scalar_round_coarse(x[i]);
}

bool view_is_empty(const cpu_view *v) {
  for (int i = 0; i < v->ndim; i++)
    if (v->shape[i] == 0) return true;
  return false;
}

int64_t side_coordinate(const cpu_side *s, int64_t place, int axis) {
  for (int a = s->axes - 1; a > axis; a--) place /= s->extent[a];
  return axis > 0 ? place % s->extent[axis] : place;
}

static int64_t place_offset(const cpu_view *v, int64_t place) {
  int64_t at = 0;
  for (int a = v->side->axes - 1; a >= 0; a--) {
    at += place % v->side->extent[a] * v->step[a];
    place /= v->side->extent[a];
  }
  return at;
}

static char *view_at(const cpu_view *v, const int64_t *index) {
  int64_t at = 0;
  for (int i = 0; i < v->ndim; i++) at += index[i] * v->stride[i];
  if (v->side != NULL) at += place_offset(v, index[v->row_axis]);
  return v->data + at * (v->bits / 8);
}

double view_get(const cpu_view *v, const int64_t *index) {
  const char *at = view_at(v, index);
  double f64;
  float f32;
  uint16_t u16;
  int16_t i16;
  int32_t i32;
  int64_t i64;
  switch (v->code) {
    case kDLFloat:
      if (v->bits == 64) return memcpy(&f64, at, 8), f64;
      if (v->bits == 32) return memcpy(&f32, at, 4), (double)f32;
      return memcpy(&u16, at, 2), half_to_double(u16);
    case kDLBfloat:
      return memcpy(&u16, at, 2), bf16_to_double(u16);
    case kDLInt:
      if (v->bits == 64) return memcpy(&i64, at, 8), (double)i64;
      if (v->bits == 32) return memcpy(&i32, at, 4), (double)i32;
      return memcpy(&i16, at, 2), (double)i16;
    case kDLUInt:
      if (v->kind == VIEW_U8) return *(const unsigned char *)at;
      return *at != 0;
    default: /* bool, as 8-bit unsigned */
      return *at != 0;
  }
}

int64_t view_get_wide(const cpu_view *v, const int64_t *index) {
  int64_t x;
  if (v->kind != VIEW_I64) return (int64_t)view_get(v, index);
  memcpy(&x, view_at(v, index), sizeof x);
  return x;
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

static bool is_of_kind(DLDataType t, view_kind kind) {
  if (t.lanes != 1) return false;
  if (kind == VIEW_INT) return t.code == kDLInt && t.bits == 32;
  if (kind == VIEW_I64) return t.code == kDLInt && t.bits == 64;
  if (kind == VIEW_I16) return t.code == kDLInt && t.bits == 16;
  if (kind == VIEW_U8) return t.code == kDLUInt && t.bits == 8;
  if (kind == VIEW_BOOL) return (t.code == kDLUInt || t.code == DLPACK_BOOL) && t.bits == 8;
  if (t.code == kDLBfloat) return t.bits == 16;
  return t.code == kDLFloat && (t.bits == 64 || t.bits == 32 || t.bits == 16);
}

static luattn_status check_data(const view_rule *rule, const DLTensor *t, luattn_error *err) {
  static const char *const wanted[] = {[VIEW_REAL] = "float64, float32, bfloat16 or float16",
                                       [VIEW_INT] = "int32",
                                       [VIEW_BOOL] = "bool",
                                       [VIEW_I64] = "int64",
                                       [VIEW_I16] = "int16",
                                       [VIEW_U8] = "uint8"};
  if (!is_of_kind(t->dtype, rule->kind)) {
    char type[DTYPE_TEXT_SIZE];
    dtype_text(t->dtype, type, sizeof type);
    return luattn_fail(err, LUATTN_INVALID, "cpu: %s: has dtype %s, expected %s; convert it", rule->name, type,
                       wanted[rule->kind]);
  }
  for (int i = 0; i < rule->ndim; i++) {
    if (t->shape[i] == 0) return LUATTN_OK; /* nothing is read or written */
  }
  if (t->data == NULL)
    return luattn_fail(err, LUATTN_INVALID, "cpu: %s: its data pointer is NULL; give it memory", rule->name);
  if (t->device.device_type != kDLCPU) {
    return luattn_fail(err, LUATTN_INVALID,
                       "cpu: %s: is on DLPack device type %d, expected %d (CPU); luattn_copy_to_host copies from a GPU",
                       rule->name, (int)t->device.device_type, (int)kDLCPU);
  }
  overlap_reach span = {0, 0, false};
  for (int i = 0; t->strides != NULL && i < rule->ndim; i++) overlap_reach_add(&span, t->shape[i], t->strides[i]);
  if (!overlap_reach_ok(&span, t, t->data)) {
    char reach[400];
    overlap_reach_text(t, reach, sizeof reach);
    return luattn_fail(err, LUATTN_INVALID, "cpu: %s: %s", rule->name, reach);
  }
  for (int i = 0; rule->is_output && t->strides != NULL && i < rule->ndim; i++) {
    if (t->strides[i] == 0 && t->shape[i] > 1) {
      return luattn_fail(err, LUATTN_INVALID,
                         "cpu: %s: axis %d has stride 0 over %lld elements; give each element of an output "
                         "memory of its own",
                         rule->name, i, (long long)t->shape[i]);
    }
  }
  if (rule->is_output && !overlap_nests(t))
    return luattn_fail(err, LUATTN_INVALID,
                       "cpu: %s: has strides by which elements share memory; expected strides of an output to "
                       "reach past all that smaller ones span",
                       rule->name);
  return LUATTN_OK;
}

/* The rule with the axes of a grid in place of that of its rows. axes_text: room for its axes */
static view_rule with_axes_of_grid(const view_rule *rule, char *axes_text, size_t size) {
  view_rule full = *rule;
  const cpu_side *side = rule->side;
  if (side == NULL) return full;
  const int more = side->axes - 1;
  for (int i = rule->ndim - 1; i > rule->row_axis; i--) full.shape[i + more] = rule->shape[i];
  for (int a = 0; a < side->axes; a++) full.shape[rule->row_axis + a] = side->extent[a];
  full.ndim += more;
  const char *at = strstr(rule->axes, side->length);
  size_t used = (size_t)(at - rule->axes);
  memcpy(axes_text, rule->axes, used);
  for (int a = 0; a < side->axes && used < size; a++)
    used += (size_t)snprintf(axes_text + used, size - used, "%s%s.%s", a > 0 ? ", " : "", side->length, side->name[a]);
  if (used < size) snprintf(axes_text + used, size - used, "%s", at + strlen(side->length));
  full.axes = axes_text;
  return full;
}

/* The axes of a grid become the one of their places. */
static luattn_status take_places(const view_rule *rule, const int64_t *shape, const int64_t *stride, cpu_view *out,
                                 luattn_error *err) {
  cpu_side *side = rule->side;
  int64_t places = 1;
  out->side = side, out->row_axis = rule->row_axis;
  for (int a = 0; a < side->axes; a++) {
    const int64_t extent = shape[rule->row_axis + a];
    side->extent[a] = extent, out->step[a] = stride[rule->row_axis + a];
    if (extent > LUATTN_GRID_EXTENT_MAX)
      return luattn_fail(err, LUATTN_INVALID, "cpu: %s: %s.%s is %lld, and an axis of a grid has at most %d places",
                         rule->name, side->length, side->name[a], (long long)extent, LUATTN_GRID_EXTENT_MAX);
    places *= extent; /* below 2^60 */
  }
  if (places > LUATTN_GRID_POSITIONS_MAX)
    return luattn_fail(err, LUATTN_INVALID, "cpu: %s: has %lld places, and a grid has at most %d", rule->name,
                       (long long)places, LUATTN_GRID_POSITIONS_MAX);
  for (int i = 0; i < rule->ndim; i++) {
    const int from = i > rule->row_axis ? i + side->axes - 1 : i;
    out->shape[i] = i == rule->row_axis ? places : shape[from];
    out->stride[i] = i == rule->row_axis ? 0 : stride[from];
  }
  return LUATTN_OK;
}

luattn_status view_open(const view_rule *given, const DLTensor *t, cpu_view *out, luattn_error *err) {
  char axes[256];
  const view_rule full = with_axes_of_grid(given, axes, sizeof axes), *rule = &full;
  if (t == NULL)
    return luattn_fail(err, LUATTN_INVALID, "cpu: %s: is missing; give a tensor [%s]", rule->name, rule->axes);
  if (t->ndim != rule->ndim || (t->shape == NULL && t->ndim > 0)) {
    return luattn_fail(err, LUATTN_INVALID, "cpu: %s: has %d axes%s, expected %d: [%s]", rule->name, t->ndim,
                       t->ndim == rule->ndim ? " and no shape" : "", rule->ndim, rule->axes);
  }
  for (int i = 0; i < rule->ndim; i++) {
    if (rule->shape[i] >= 0 && t->shape[i] != rule->shape[i]) {
      return luattn_fail(err, LUATTN_INVALID,
                         "cpu: %s: axis %d of [%s] has size %lld, expected %lld; tensors must agree", rule->name, i,
                         rule->axes, (long long)t->shape[i], (long long)rule->shape[i]);
    }
    if (t->shape[i] < 0 || t->shape[i] > INT32_MAX) {
      return luattn_fail(err, LUATTN_INVALID, "cpu: %s: axis %d of [%s] has size %lld, expected 0 to %d", rule->name, i,
                         rule->axes, (long long)t->shape[i], INT32_MAX);
    }
  }
  if (!rule->shape_only) TRY(check_data(rule, t, err));
  *out = (cpu_view){
      .data = (char *)t->data, .code = t->dtype.code, .bits = t->dtype.bits, .kind = rule->kind, .ndim = rule->ndim};
  if (out->data != NULL)
    out->data = (char *)((uintptr_t)t->data + (uintptr_t)t->byte_offset); /* if nothing is read, it may be anything */
  int64_t stride = 1, strides[LUATTN_MAX_AXES + 3];
  out->ndim = given->ndim;
  for (int i = rule->ndim - 1; i >= 0; i--) {
    strides[i] = t->strides != NULL ? t->strides[i] : stride;
    if (given->side == NULL) out->shape[i] = t->shape[i], out->stride[i] = strides[i];
    if (t->shape[i] > 0 && (__builtin_mul_overflow(stride, t->shape[i], &stride) || stride > INT64_MAX / 16))
      return luattn_fail(err, LUATTN_INVALID, "cpu: %s: has more elements than a machine can address", rule->name);
  }
  return given->side != NULL ? take_places(given, t->shape, strides, out, err) : LUATTN_OK;
}
