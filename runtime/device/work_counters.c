#include "runtime/device/work_counters.h"

#include <stdbool.h>

/* Gives up after this many probes: zeroing a counter is cheaper than a longer search. */
enum { STEPS = 32 };

/* An entry is claimed once and never released, so every thread finds the same entry for a key. */
static unsigned *find(_Atomic(uint64_t) *owners, unsigned count, uint64_t key, cu_pointer counters) {
  const unsigned start = (unsigned)((key * 0x9e3779b97f4a7c15u) >> 32);
  for (unsigned i = 0; i < STEPS; ++i) {
    const unsigned at = (start + i) % count;
    uint64_t owner = atomic_load_explicit(&owners[at], memory_order_relaxed);
    if (owner == 0 && atomic_compare_exchange_strong(&owners[at], &owner, key)) owner = key;
    if (owner == key) return (unsigned *)(uintptr_t)(counters + at * COUNTER_STRIDE);
  }
  return NULL;
}

unsigned *counter_of_workspace(counter_table *table, const void *workspace) {
  return find(table->workspace, COUNTER_WORKSPACES, (uint64_t)(uintptr_t)workspace / 256, table->counters);
}

unsigned *counter_of_stream(counter_table *table, uint64_t number) {
  return find(table->stream, COUNTER_STREAMS, number + 1,
              table->counters + (cu_pointer)COUNTER_WORKSPACES * COUNTER_STRIDE);
}

/* This handle stands for one stream per thread; no document says whether its number identifies that
 * stream. */
static bool is_per_thread(cu_stream stream) { return (uintptr_t)stream == 2; }

/* At capture, the stream that will run the launch is unknown. */
static bool is_captured(const luattn_driver *d, cu_stream stream) {
  int status = 1;
  return d->stream_is_capturing(stream, &status) != 0 || status != 0;
}

unsigned *counter_find(counter_table *table, const luattn_driver *d, const void *workspace, cu_stream stream) {
  unsigned long long number;
  unsigned *counter = counter_of_workspace(table, workspace);
  if (counter != NULL || d->stream_is_capturing == NULL || d->stream_id == NULL || is_per_thread(stream))
    return counter;
  /* In this order: a stream that is being captured must not be asked for its number. */
  if (is_captured(d, stream) || d->stream_id(stream, &number) != 0 || number == UINT64_MAX) return NULL;
  return counter_of_stream(table, number);
}
