/* arrays.h: arrays of a storage type on the host and on the device of an engine, for programs that run on the
 * PTX machine or on a GPU. A failure ends the program. */
#ifndef LUATTN_TESTS_PTX_ARRAYS_H
#define LUATTN_TESTS_PTX_ARRAYS_H

#include <stdbool.h>
#include <stdint.h>

#include "luattn/engine.h"

extern luattn_driver *driver; /* of the engine: set it first; NULL: the engine is on the CPU, and the device is the host */
extern luattn_error err;

void need(bool ok, const char *what);
double drawn(void); /* in [-1, 1) */

typedef enum kind { F64, F32, BF16, F16, I32 } kind;
extern const char *const kind_name[];
extern const double kind_unit[]; /* of rounding */

void put(kind k, void *to, size_t at, double x); /* rounds to nearest */
double get(kind k, const void *from, size_t at);

typedef struct array {
  kind k;
  size_t count;
  void *host, *device; /* of `count` elements */
  int64_t shape[4];
  DLTensor t; /* of the device, contiguous */
} array;

void make(array *a, kind k, int ndim, const int64_t *shape);
void fill(array *a, double x);
void send(array *a);
void fetch(array *a);
void drop(array *a);

#endif
