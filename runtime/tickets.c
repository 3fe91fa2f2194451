#include "runtime/tickets.h"

/* Entries only ever go from nobody's to one workspace's, so that a search that stops at the first of either
 * kind finds one and the same, whoever else is searching. */
unsigned *tickets_find(ticket_table *table, const void *workspace) {
  const uintptr_t key = (uintptr_t)workspace;
  const unsigned start = (unsigned)((key / 256 * 0x9e3779b97f4a7c15u) >> 32);
  for (unsigned i = 0; i < TICKETS_COUNTERS; ++i) {
    const unsigned at = (start + i) % TICKETS_COUNTERS;
    uintptr_t owner = atomic_load_explicit(&table->workspace[at], memory_order_relaxed);
    if (owner == 0 && atomic_compare_exchange_strong(&table->workspace[at], &owner, key)) owner = key;
    if (owner == key) return (unsigned *)(uintptr_t)(table->counters + at * TICKETS_STRIDE);
  }
  return NULL;
}
