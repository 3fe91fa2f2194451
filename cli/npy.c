/* npy.c: NumPy's array format, versions 1.0 to 3.0 (numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
 * Little-endian f2, f4, f8, i4, i8, b1, u1 in C order; at most 4 dimensions. Nothing in the file is trusted. */
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
  int64_t shape[4];
} npy_header;

static luattn_status damaged(const char *path, const char *what, luattn_error *err) {
  return luattn_fail(err, LUATTN_IO, "%s: not a readable .npy file: %s; write it with numpy.save", path, what);
}

static luattn_status parse_shape(const char *path, const char *at, npy_header *h, luattn_error *err) {
  if (*at != '(') return damaged(path, "'shape' is not a tuple", err);
  for (at++; *at != ')'; ) {
    char *end;
    while (*at == ' ' || *at == ',') at++;
    if (*at == ')') break;
    errno = 0;
    const long long n = strtoll(at, &end, 10);
    if (end == at || errno != 0 || n < 0) return damaged(path, "'shape' holds something that is not a size", err);
    if (h->ndim == 4) return luattn_fail(err, LUATTN_IO, "%s: more than 4 dimensions", path);
    h->shape[h->ndim++] = n;
    at = end;
  }
  int64_t count = 1;
  for (int i = 0; i < h->ndim; i++) {
    if (h->shape[i] != 0 && count > MAX_ELEMENTS / h->shape[i]) {
      return luattn_fail(err, LUATTN_IO, "%s: more than 2^36 elements", path);
    }
    count *= h->shape[i];
  }
  return LUATTN_OK;
}

static const char *find_value(const char *header, const char *key) {
  const char *at = strstr(header, key);
  if (at == NULL) return NULL;
  for (at += strlen(key); *at == ' ' || *at == ':'; at++) continue;
  return at;
}

static luattn_status parse_header(const char *path, const char *text, npy_header *h, luattn_error *err) {
  const char *descr = find_value(text, "'descr'"), *order = find_value(text, "'fortran_order'");
  const char *shape = find_value(text, "'shape'");
  if (descr == NULL || order == NULL || shape == NULL) return damaged(path, "the header lacks descr, fortran_order or shape", err);
  if (strncmp(order, "False", 5) != 0) {
    return luattn_fail(err, LUATTN_IO, "%s: Fortran order is not supported; save numpy.ascontiguousarray(x)", path);
  }
  static const char *const known[] = {"'<f8'", "'<f4'", "'<f2'", "'<i4'", "'<i8'", "'|b1'", "'|u1'"};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (strncmp(descr, known[i], 5) == 0) h->kind = known[i][2], h->size = known[i][3] - '0';
  }
  if (h->size == 0) {
    return luattn_fail(err, LUATTN_IO, "%s: dtype %.8s is not supported; use float64, float32, float16, int32, int64 or bool", path,
                       descr);
  }
  return parse_shape(path, shape, h, err);
}

static luattn_status read_header(const char *path, FILE *f, npy_header *h, luattn_error *err) {
  unsigned char head[12];
  if (fread(head, 1, 10, f) != 10 || memcmp(head, "\x93NUMPY", 6) != 0) return damaged(path, "it does not begin with \\x93NUMPY", err);
  size_t size = (size_t)head[8] | (size_t)head[9] << 8;
  if (head[6] < 1 || head[6] > 3) return damaged(path, "its format version is not 1, 2 or 3", err);
  if (head[6] > 1) {
    if (fread(head + 10, 1, 2, f) != 2) return damaged(path, "the header is cut short", err);
    size |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
  }
  if (size > MAX_HEADER) return damaged(path, "the header is larger than 64 KiB", err);
  char *text = calloc(size + 1, 1);
  if (text == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", path);
  luattn_status status = fread(text, 1, size, f) == size ? parse_header(path, text, h, err)
                                                         : damaged(path, "the header is cut short", err);
  free(text);
  return status;
}

static DLDataType type_of(const npy_header *h) {
  if (h->kind == 'f') return (DLDataType){kDLFloat, (uint8_t)(h->size * 8), 1};
  if (h->kind == 'i') return (DLDataType){kDLInt, 32, 1};
  return (DLDataType){kDLUInt, 8, 1};
}

/* int64 is what NumPy makes of Python integers: take it where the values fit. */
static luattn_status read_int64(const char *path, FILE *f, array *a, luattn_error *err) {
  for (int64_t i = 0, n = array_count(a); i < n; i++) {
    int64_t x;
    if (fread(&x, 1, 8, f) != 8) return damaged(path, "the data is cut short", err);
    if (x != (int32_t)x) return luattn_fail(err, LUATTN_IO, "%s: element %lld is %lld, which 32 bits do not hold", path, (long long)i, (long long)x);
    ((int32_t *)a->storage)[i] = (int32_t)x;
  }
  return LUATTN_OK;
}

luattn_status npy_read(const char *path, array *out, luattn_error *err) {
  npy_header h = {0};
  *out = (array){0};
  FILE *f = fopen(path, "rb");
  if (f == NULL) return luattn_fail(err, LUATTN_IO, "%s: %s", path, strerror(errno));
  luattn_status status = read_header(path, f, &h, err);
  if (status == LUATTN_OK) status = array_new(out, type_of(&h), h.ndim, h.shape, false, err);
  if (status == LUATTN_OK && h.kind == 'i' && h.size == 8) {
    status = read_int64(path, f, out, err);
  } else if (status == LUATTN_OK && fread(out->storage, 1, array_bytes(out), f) != array_bytes(out)) {
    status = damaged(path, "the data is cut short", err);
  }
  if (status == LUATTN_OK && fgetc(f) != EOF) status = damaged(path, "bytes follow the data", err);
  fclose(f);
  if (status != LUATTN_OK) array_free(out);
  return status;
}

luattn_status npy_write(const char *path, const array *a, luattn_error *err) {
  const bool widen = a->t.dtype.code == kDLBfloat;
  const int size = widen ? 4 : a->t.dtype.bits / 8;
  const char kind = a->t.dtype.code == kDLInt ? 'i' : a->t.dtype.code == kDLUInt ? 'u' : 'f';
  char header[256];
  int n = snprintf(header, sizeof header, "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (", size == 1 ? '|' : '<', kind, size);
  for (int i = 0; i < a->t.ndim; i++) n += snprintf(header + n, sizeof header - (size_t)n, "%lld,", (long long)a->shape[i]);
  n += snprintf(header + n, sizeof header - (size_t)n, "), }");
  while ((10 + n + 1) % 64 != 0) header[n++] = ' ';
  header[n++] = '\n';
  FILE *f = fopen(path, "wb");
  if (f == NULL) return luattn_fail(err, LUATTN_IO, "%s: %s", path, strerror(errno));
  const unsigned char head[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(n & 255), (unsigned char)(n >> 8)};
  bool ok = fwrite(head, 1, 10, f) == 10 && fwrite(header, 1, (size_t)n, f) == (size_t)n;
  for (int64_t i = 0, count = array_count(a); i < count && ok; i++) { /* logical order, whatever the strides */
    const double x = array_get(a, i);
    if (size == 8) ok = fwrite(&x, 8, 1, f) == 1;
    else if (size == 4 && kind == 'f') ok = fwrite(&(float){(float)x}, 4, 1, f) == 1;
    else if (size == 4) ok = fwrite(&(int32_t){(int32_t)x}, 4, 1, f) == 1;
    else if (size == 2) {
      array one = {0};
      uint16_t bits = 0;
      one.t.dtype = a->t.dtype, one.t.ndim = 0, one.storage = &bits;
      array_set(&one, 0, x);
      ok = fwrite(&bits, 2, 1, f) == 1;
    } else ok = fputc(x != 0, f) != EOF;
  }
  if (fclose(f) != 0 || !ok) return luattn_fail(err, LUATTN_IO, "%s: %s", path, strerror(errno));
  return LUATTN_OK;
}
