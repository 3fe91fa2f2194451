/* fake_cuda.h: a libcuda for tests, without a device: records all calls. Device memory is host memory.
 *
 * A module may be any bytes. If they start with "FAKE", the module has the functions named after that word;
 * otherwise it has every function. LUATTN_FAKE_FAIL=symbol:n:result makes the n-th call of a function fail
 * (cuInit reads this and LUATTN_FAKE_ARCH=90). LUATTN_FAKE_DRIVER=12080 sets the driver's version, by default
 * 13000. A launch takes no time; with LUATTN_FAKE_COST=shared it takes a tick per KB of dynamic shared
 * memory, and two event records always take a tick. A launch writes nothing; with LUATTN_FAKE_WRONG=n a
 * launch with n bytes of dynamic shared memory writes zeros at the start of o.
 */
#ifndef LUATTN_TESTS_FAKE_CUDA_H
#define LUATTN_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>

#include "abi/params.h"

#define FAKE_API __attribute__((visibility("default")))
#define FAKE_DEVICES 2
#define FAKE_SHARED_BYTES 232448 /* the maximum per block */

typedef enum fake_kind { FAKE_LAUNCH, FAKE_FILL } fake_kind;

/* The fake's format of a TMA descriptor, in place of NVIDIA's. */
typedef struct fake_map {
  int type, promotion;
  unsigned rank, box[2];
  const void *data;
  unsigned long long size[5], stride[4];
} fake_map;

typedef struct fake_event {
  fake_kind kind;
  char name[64]; /* the launched function */
  unsigned grid[3], block[3], shared_bytes;
  bool early; /* while the kernel before it runs */
  LuattnParams params;
  LuattnTensorMaps maps; /* the second parameter, once a descriptor was encoded in this process */
  void *ptr;             /* address of a fill */
  unsigned value;
  size_t bytes;
  void *stream, *context;
} fake_event;

/* Resources that are not yet freed. */
typedef struct fake_live_counts {
  int contexts, modules, allocations, events;
} fake_live_counts;

FAKE_API void fake_reset(void); /* forgets events, planned failures and the count of descriptors */
FAKE_API void fake_fail(const char *symbol, int nth, int result);
FAKE_API size_t fake_num_events(void);
FAKE_API const fake_event *fake_get_event(size_t index); /* only the first 256 are recorded */
FAKE_API size_t fake_num_descriptors(void);              /* calls of cuTensorMapEncodeTiled */
FAKE_API fake_live_counts fake_live(void);
FAKE_API void *fake_current_context(void); /* of this thread */
FAKE_API void fake_push_context(void *context);
FAKE_API void *fake_pop_context(void);
FAKE_API void *fake_primary_context(int device);
FAKE_API void fake_capture(void *stream); /* marks the stream as in capture; NULL: no stream is */

#endif
