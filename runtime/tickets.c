#include "runtime/tickets.h"

#include <stdbool.h>

/* Gives up after so many probes: zeroing a counter is cheaper than a longer search. */
enum { STEPS = 32 };

/* An entry is claimed once and never released, so every thread finds the same entry for a key. */
static unsigned *find(_Atomic(uint64_t) *owners, unsigned count, uint64_t key, cu_pointer counters) {
  const unsigned start = (unsigned)((key * 0x9e3779b97f4a7c15u) >> 32);
  for (unsigned i = 0; i < STEPS; ++i) {
    const unsigned at = (start + i) % count;
    uint64_t owner = atomic_load_explicit(&owners[at], memory_order_relaxed);
    if (owner == 0 && atomic_compare_exchange_strong(&owners[at], &owner, key)) owner = key;
    if (owner == key) return (unsigned *)(uintptr_t)(counters + at * TICKETS_STRIDE);
  }
  return NULL;
}

unsigned *tickets_of_workspace(ticket_table *table, const void *workspace) {
  return find(table->workspace, TICKETS_WORKSPACES, (uint64_t)(uintptr_t)workspace / 256, table->counters);
}

unsigned *tickets_of_stream(ticket_table *table, uint64_t number) {
  return find(table->stream, TICKETS_STREAMS, number + 1,
              table->counters + (cu_pointer)TICKETS_WORKSPACES * TICKETS_STRIDE);
}

/* The handle of one stream for each thread: whether its number is that stream's, no document says. */
static bool is_per_thread(cu_stream stream) { return (uintptr_t)stream == 2; }

/* The stream that will run a captured launch is not known at capture. */
static bool is_captured(const luattn_driver *d, cu_stream stream) {
  int status = 1;
  return d->stream_is_capturing(stream, &status) != 0 || status != 0;
}

unsigned *tickets_find(ticket_table *table, const luattn_driver *d, const void *workspace, cu_stream stream) {
  unsigned long long number;
  unsigned *counter = tickets_of_workspace(table, workspace);
  if (counter != NULL || d->stream_is_capturing == NULL || d->stream_id == NULL || is_per_thread(stream))
    return counter;
  /* In this order: to ask a stream that is being captured for its number is not allowed. */
  if (is_captured(d, stream) || d->stream_id(stream, &number) != 0 || number == UINT64_MAX) return NULL;
  return tickets_of_stream(table, number);
}
