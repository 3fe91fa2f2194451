#include "cli/read_array.h"

#include <string.h>

/* Whether numbers of one type may be stored as another: floats are rounded, integers must fit, and booleans
 * may be bytes. */
static bool converts(const array *from, const array *to) {
  if (to->t.dtype.code == ARRAY_BOOL) return from->t.dtype.code == ARRAY_BOOL || from->t.dtype.code == kDLUInt;
  return !array_is_integer(to) || array_is_integer(from);
}

static const char *type_name(DLDataType type) {
  if (type.code == ARRAY_BOOL) return "bool";
  if (type.code == kDLUInt) return "uint8";
  return type.bits == 64 ? "int64" : type.bits == 32 ? "int32" : "int16";
}

static luattn_status convert_elements(const char *path, const array *from, array *to, luattn_error *err) {
  for (int64_t i = 0, n = array_count(to); i < n; i++) {
    if (!array_is_integer(to)) {
      array_set(to, i, array_get(from, i));
      continue;
    }
    const int64_t x = array_integer(from, i);
    if (array_set_integer(to, i, x)) continue;
    const bool is_32 = to->t.dtype.bits == 32;
    return luattn_fail(err, LUATTN_IO, "%s: element %lld is %lld, which %s %s not hold; use smaller integers", path,
                       (long long)i, (long long)x, is_32 ? "32 bits" : type_name(to->t.dtype), is_32 ? "do" : "does");
  }
  return LUATTN_OK;
}

luattn_status read_array(const file_rule *rule, bool heads_last, array *out, luattn_error *err) {
  array raw;
  TRY(npy_read(rule->path, &raw, err));
  luattn_status status = LUATTN_OK;
  if (raw.t.ndim != rule->ndim) {
    status = luattn_fail(err, LUATTN_INVALID, "%s: %s: has %d dimensions, expected %d, %s; reshape it", rule->option,
                         rule->path, raw.t.ndim, rule->ndim, rule->axes);
  } else if (rule->type.bits == 0 && raw.t.dtype.code != kDLFloat) {
    status =
        luattn_fail(err, LUATTN_INVALID,
                    "%s: %s: holds %s, and dtype any in the spec stands for floats; save x.astype(numpy.float32), or "
                    "declare an integer's type",
                    rule->option, rule->path, type_name(raw.t.dtype));
  } else if (!converts(&raw, &(array){.t.dtype = rule->type})) {
    status = luattn_fail(err, LUATTN_INVALID,
                         "%s: %s: holds another type than %s, which the spec declares; save x.astype(numpy.%s)",
                         rule->option, rule->path, type_name(rule->type), type_name(rule->type));
  }
  for (int i = 0; i < raw.t.ndim && status == LUATTN_OK; i++) {
    if (raw.shape[i] > INT32_MAX) {
      status = luattn_fail(err, LUATTN_INVALID, "%s: %s: axis %d has size %lld, more than 2^31 - 1; cut it",
                           rule->option, rule->path, i, (long long)raw.shape[i]);
    }
  }
  if (status == LUATTN_OK && heads_last && rule->ndim >= 4) array_move_axis(&raw, rule->ndim - 2, 1);
  const DLDataType type = rule->type.bits > 0 ? rule->type : raw.t.dtype;
  if (status == LUATTN_OK) status = array_new(out, type, rule->ndim, raw.shape, heads_last, err);
  if (status == LUATTN_OK) {
    status = convert_elements(rule->path, &raw, out, err);
    if (status != LUATTN_OK) array_free(out);
  }
  array_free(&raw);
  return status;
}

luattn_status expect_shape(const char *option, const array *a, const char *const *axis, const int64_t *shape,
                           const char *const *from, luattn_error *err) {
  for (int i = 0; i < a->t.ndim; i++) {
    if (a->shape[i] != shape[i]) {
      return luattn_fail(err, LUATTN_INVALID, "%s: %s is %lld, but %s has %lld; give arrays that agree%s", option,
                         axis[i], (long long)a->shape[i], from[i], (long long)shape[i],
                         strcmp(axis[0], "batch") == 0 ? " (and see --layout)" : "");
    }
  }
  return LUATTN_OK;
}
