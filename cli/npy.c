/* npy.c: NumPy's array format, versions 1.0 to 3.0
 * (numpy.org/doc/stable/reference/generated/numpy.lib.format.html). Little-endian f2, f4, f8, i2, i4, i8, b1,
 * u1 in C order; at most ARRAY_MAX_AXES dimensions. Nothing in the file is trusted. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

#define MAX_HEADER 65536
#define MAX_ELEMENTS (INT64_C(1) << 36)

typedef struct npy_header {
  char kind;
  int size;
  int ndim;
  int64_t shape[ARRAY_MAX_AXES];
} npy_header;

static luattn_status damaged(const char *name, const char *what, luattn_error *err) {
  return luattn_fail(err, LUATTN_IO, "%s: not a readable .npy file: %s; write it with numpy.save", name, what);
}

/* A Python tuple of sizes: (), (3,), (2, 3). */
static luattn_status parse_shape(const char *name, const char *at, npy_header *h, luattn_error *err) {
  if (*at++ != '(') return damaged(name, "'shape' is not a tuple", err);
  int64_t count = 1;
  for (;;) {
    char *end;
    while (*at == ' ') at++;
    if (*at == ')') return LUATTN_OK;
    if (*at < '0' || *at > '9') return damaged(name, "'shape' holds something that is not a size", err);
    if (h->ndim == ARRAY_MAX_AXES)
      return luattn_fail(err, LUATTN_IO, "%s: has more than %d dimensions; reshape it", name, ARRAY_MAX_AXES);
    errno = 0;
    const long long n = strtoll(at, &end, 10);
    if (errno != 0 || (n != 0 && count > MAX_ELEMENTS / n)) {
      return luattn_fail(err, LUATTN_IO, "%s: announces more than 2^36 elements; split it", name);
    }
    count *= n;
    h->shape[h->ndim++] = n;
    for (at = end; *at == ' '; at++) continue;
    if (*at == ',')
      at++;
    else if (*at != ')')
      return damaged(name, "'shape' is not a tuple", err);
  }
}

static const char *find_value(const char *header, const char *key) {
  const char *at = strstr(header, key);
  if (at == NULL) return NULL;
  for (at += strlen(key); *at == ' ' || *at == ':'; at++) continue;
  return at;
}

static luattn_status unknown_dtype(const char *name, const char *descr, luattn_error *err) {
  char shown[16];
  size_t n = 0;
  for (; n < sizeof shown - 1 && descr[n] != ',' && descr[n] != 0; n++) {
    shown[n] = descr[n] >= ' ' && descr[n] <= '~' ? descr[n] : '?'; /* a terminal would interpret control
                                                                     * characters */
  }
  shown[n] = 0;
  return luattn_fail(err, LUATTN_IO,
                     "%s: dtype %s is not supported; save it as float64, float32, float16, int64, int32, "
                     "int16, uint8 or bool",
                     name, shown);
}

static luattn_status parse_header(const char *name, const char *text, npy_header *h, luattn_error *err) {
  static const char *const known[] = {"'<f8'", "'<f4'", "'<f2'", "'<i2'", "'<i4'", "'<i8'", "'|b1'", "'|u1'"};
  const char *descr = find_value(text, "'descr'"), *order = find_value(text, "'fortran_order'");
  const char *shape = find_value(text, "'shape'");
  if (descr == NULL || order == NULL || shape == NULL) {
    return damaged(name, "the header lacks descr, fortran_order or shape", err);
  }
  if (strncmp(order, "True", 4) == 0) {
    return luattn_fail(err, LUATTN_IO, "%s: is in Fortran order; save numpy.ascontiguousarray(x)", name);
  }
  if (strncmp(order, "False", 5) != 0) return damaged(name, "'fortran_order' is neither True nor False", err);
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (strncmp(descr, known[i], 5) == 0) h->kind = known[i][2], h->size = known[i][3] - '0';
  }
  if (h->size == 0) return unknown_dtype(name, descr, err);
  return parse_shape(name, shape, h, err);
}

static luattn_status read_header(const char *name, FILE *f, npy_header *h, luattn_error *err) {
  unsigned char head[12];
  if (fread(head, 1, 10, f) != 10 || memcmp(head, "\x93NUMPY", 6) != 0) {
    return damaged(name, "it does not begin with \\x93NUMPY and a header", err);
  }
  size_t size = (size_t)head[8] | (size_t)head[9] << 8;
  if (head[6] < 1 || head[6] > 3) return damaged(name, "its format version is not 1, 2 or 3", err);
  if (head[6] > 1) {
    if (fread(head + 10, 1, 2, f) != 2) return damaged(name, "the header is cut short", err);
    size |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
  }
  if (size > MAX_HEADER) return damaged(name, "the header is larger than 64 KiB", err);
  char *text = calloc(size + 1, 1);
  if (text == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: no memory for a header of %zu bytes", name, size);
  luattn_status status = fread(text, 1, size, f) == size ? parse_header(name, text, h, err)
                                                         : damaged(name, "the header is cut short", err);
  free(text);
  return status;
}

/* Checked before anything is allocated: a header of 100 bytes can announce half a terabyte. */
static luattn_status check_size(const char *name, FILE *f, const npy_header *h, luattn_error *err) {
  const off_t start = ftello(f);
  if (start < 0 || fseeko(f, 0, SEEK_END) != 0)
    return damaged(name, "it cannot be measured, so it is no regular file", err);
  const off_t end = ftello(f);
  if (end < start || fseeko(f, start, SEEK_SET) != 0) return damaged(name, "it cannot be read twice", err);
  int64_t announced = h->size;
  for (int i = 0; i < h->ndim; i++) announced *= h->shape[i];
  if (end - start == announced) return LUATTN_OK;
  return luattn_fail(err, LUATTN_IO,
                     "%s: not a readable .npy file: %lld bytes of data follow the header, which announces %lld; "
                     "write it with numpy.save",
                     name, (long long)(end - start), (long long)announced);
}

static DLDataType type_of(const npy_header *h) {
  if (h->kind == 'f') return (DLDataType){kDLFloat, (uint8_t)(h->size * 8), 1};
  if (h->kind == 'i') return (DLDataType){kDLInt, (uint8_t)(h->size * 8), 1};
  return (DLDataType){h->kind == 'u' ? kDLUInt : ARRAY_BOOL, 8, 1};
}

luattn_status npy_read_stream(const char *name, FILE *f, array *out, luattn_error *err) {
  npy_header h = {0};
  *out = (array){0};
  TRY(read_header(name, f, &h, err));
  TRY(check_size(name, f, &h, err));
  TRY(array_new(out, type_of(&h), h.ndim, h.shape, false, err));
  luattn_status status = LUATTN_OK;
  if (fread(out->storage, 1, array_bytes(out), f) != array_bytes(out))
    status = damaged(name, "the data is cut short", err);
  unsigned char *byte = out->storage;
  for (int64_t i = 0, n = h.kind == 'b' ? array_count(out) : 0; i < n; i++) byte[i] = byte[i] != 0;
  if (status != LUATTN_OK) array_free(out);
  return status;
}

luattn_status npy_read(const char *path, array *out, luattn_error *err) {
  *out = (array){0};
  FILE *f = fopen(path, "rb");
  if (f == NULL) {
    return luattn_fail(err, LUATTN_IO, "%s: cannot be opened: %s; name a .npy file", path, strerror(errno));
  }
  const luattn_status status = npy_read_stream(path, f, out, err);
  fclose(f);
  return status;
}

/* Writes one element as stored, except for bfloat16. */
static bool write_element(FILE *f, const array *a, int64_t flat) {
  const float wide = (float)array_get(a, flat);
  if (a->t.dtype.code == kDLBfloat) return fwrite(&wide, sizeof wide, 1, f) == 1;
  return fwrite(array_at(a, flat), a->t.dtype.bits / 8u, 1, f) == 1;
}

static bool write_stream(FILE *f, const array *a) {
  const int size = a->t.dtype.code == kDLBfloat ? 4 : a->t.dtype.bits / 8;
  const char kind = a->t.dtype.code == kDLInt       ? 'i'
                    : a->t.dtype.code == kDLUInt    ? 'u'
                    : a->t.dtype.code == ARRAY_BOOL ? 'b'
                                                    : 'f';
  char header[256];
  int n = snprintf(header, sizeof header, "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (",
                   size == 1 ? '|' : '<', kind, size);
  for (int i = 0; i < a->t.ndim; i++)
    n += snprintf(header + n, sizeof header - (size_t)n, "%lld,", (long long)a->shape[i]);
  n += snprintf(header + n, sizeof header - (size_t)n, "), }");
  while ((10 + n + 1) % 64 != 0) header[n++] = ' ';
  header[n++] = '\n';
  const unsigned char head[10] = {
      0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(n & 255), (unsigned char)(n >> 8)};
  bool ok = fwrite(head, 1, 10, f) == 10 && fwrite(header, 1, (size_t)n, f) == (size_t)n;
  for (int64_t i = 0, count = array_count(a); i < count && ok; i++) ok = write_element(f, a, i); /* in logical order */
  return ok;
}

luattn_status npy_write(const char *path, const array *a, luattn_error *err) {
  FILE *f = fopen(path, "wb");
  bool ok = f != NULL && write_stream(f, a);
  int reason = errno;
  if (f != NULL && fclose(f) != 0 && ok) ok = false, reason = errno;
  if (ok) return LUATTN_OK;
  return luattn_fail(err, LUATTN_IO, "%s: cannot be written: %s; choose a folder with room that can be written", path,
                     strerror(reason));
}
