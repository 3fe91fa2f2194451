/* arrays.h: arrays of a storage type on the host and on an engine's device, for programs that run on the
 * PTX machine or on a GPU. A failure ends the program. */
#ifndef LUATTN_TESTS_PTX_ARRAYS_H
#define LUATTN_TESTS_PTX_ARRAYS_H

#include <stdbool.h>
#include <stdint.h>

#include "luattn/engine.h"

extern luattn_driver *driver; /* the engine's; set it first. NULL: the CPU, with host memory */
extern luattn_error err;

void need(bool ok, const char *what);
double drawn(void); /* in [-1, 1) */

typedef enum kind { F64, F32, BF16, F16, I32 } kind;
extern const char *const kind_name[];
extern const double kind_unit[]; /* unit roundoff */

void put(kind k, void *to, size_t at, double x); /* rounds to nearest */
double get(kind k, const void *from, size_t at);

typedef struct array {
  kind k;
  size_t count;
  void *host, *device; /* `count` elements each */
  int64_t shape[4];
  DLTensor t; /* device data, contiguous */
} array;

void make(array *a, kind k, int ndim, const int64_t *shape);
void fill(array *a, double x);
void send(array *a);
void fetch(array *a);
void drop(array *a);

/* Whether the driver's device is as large as the PTX machine, so that small problems have more tiles than it has
 * multiprocessors. On a larger one, launches make no lists of so few tiles, and tests do not expect them. */
bool is_small_device(void);

#endif
