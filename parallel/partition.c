#include "parallel/partition.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool partition_suits(luattn_partition partition, int chunks, int ranks) {
  const int parts = partition == LUATTN_PARTITION_ZIGZAG ? 2 * ranks : ranks;
  return chunks % parts == 0;
}

const char *luattn_partition_name(luattn_partition partition) {
  static const char *const names[] = {"contiguous", "zigzag", "by counts", "by time"};
  return partition >= LUATTN_PARTITION_CONTIGUOUS && partition <= LUATTN_PARTITION_BY_TIME ? names[partition] : "?";
}

static void fill_parts(int chunks, int ranks, bool zigzag, int *rank_of) {
  const int parts = zigzag ? 2 * ranks : ranks, each = chunks / parts;
  for (int c = 0; c < chunks; ++c) {
    const int part = c / each;
    rank_of[c] = part < ranks ? part : parts - 1 - part;
  }
}

/* ---- by counts ---- */

/* A rank that has a little more work than the least loaded one is preferred if it has most of a chunk's keys already, or
 * its queries need them: then fewer keys travel. */
static const double near_share = 0.02; /* of the mean work */
/* Work is balanced where the most is so little above the mean. */
static const double balanced = 1.003;
enum { MOST_SWAPS = 60 };

typedef struct sharing {
  const chunk_counts *counts;
  int ranks;
  int *rank_of, *room;          /* of a chunk, -1: none yet; chunks that a rank may still get */
  double *cost, *load, *shared; /* of a chunk; of a rank; keys of a rank that a chunk needs, or the other way round */
  double mean;
} sharing;

/* A chunk and its cost, so that a comparison needs nothing else. */
typedef struct costed {
  double cost;
  int chunk;
} costed;

static int costlier_first(const void *a, const void *b) {
  const costed *x = a, *y = b;
  if (x->cost != y->cost) return x->cost > y->cost ? -1 : 1;
  return x->chunk < y->chunk ? -1 : x->chunk > y->chunk;
}

static double least_load(const sharing *s) {
  double least = INFINITY;
  for (int r = 0; r < s->ranks; ++r)
    if (s->room[r] > 0 && s->load[r] < least) least = s->load[r];
  return least;
}

/* The rank with room for chunk c: of those nearly as little loaded as the least one, that which shares most. */
static int rank_for(const sharing *s, int c) {
  const int n = s->counts->chunks;
  const double *tiles = s->counts->tiles, most = least_load(s) + near_share * s->mean;
  memset(s->shared, 0, (size_t)s->ranks * sizeof *s->shared);
  for (int j = 0; j < n; ++j)
    if (s->rank_of[j] >= 0)
      s->shared[s->rank_of[j]] +=
          (tiles[(size_t)c * (size_t)n + (size_t)j] > 0) + (tiles[(size_t)j * (size_t)n + (size_t)c] > 0);
  int best = -1;
  for (int r = 0; r < s->ranks; ++r) {
    if (s->room[r] == 0 || s->load[r] > most) continue;
    if (best < 0 || s->shared[r] > s->shared[best] || (s->shared[r] == s->shared[best] && s->load[r] < s->load[best]))
      best = r;
  }
  return best;
}

static void share_out(sharing *s, costed *order) {
  const int n = s->counts->chunks;
  for (int c = 0; c < n; ++c) order[c] = (costed){s->cost[c], c}, s->rank_of[c] = -1;
  qsort(order, (size_t)n, sizeof *order, costlier_first);
  for (int i = 0; i < n; ++i) {
    const int c = order[i].chunk, r = rank_for(s, c);
    s->rank_of[c] = r;
    s->load[r] += s->cost[c];
    --s->room[r];
  }
}

static void take_parts(sharing *s) {
  fill_parts(s->counts->chunks, s->ranks, false, s->rank_of);
  for (int c = 0; c < s->counts->chunks; ++c) s->load[s->rank_of[c]] += s->cost[c];
}

/* Swaps two chunks of the ranks with the most and the least work, so that the two come closest. false: none does. */
static bool swap_extremes(sharing *s) {
  const int n = s->counts->chunks;
  int most = 0, least = 0, from = -1, to = -1;
  for (int r = 1; r < s->ranks; ++r) {
    if (s->load[r] > s->load[most]) most = r;
    if (s->load[r] < s->load[least]) least = r;
  }
  const double apart = s->load[most] - s->load[least];
  double best = apart;
  if (s->load[most] <= balanced * s->mean) return false;
  for (int i = 0; i < n; ++i) {
    if (s->rank_of[i] != most) continue;
    for (int j = 0; j < n; ++j) {
      if (s->rank_of[j] != least) continue;
      const double left = fabs(apart - 2 * (s->cost[i] - s->cost[j]));
      if (left < best) best = left, from = i, to = j;
    }
  }
  if (from < 0) return false;
  s->rank_of[from] = least, s->rank_of[to] = most;
  s->load[most] += s->cost[to] - s->cost[from];
  s->load[least] += s->cost[from] - s->cost[to];
  return true;
}

/* near: from contiguous parts on, so that few keys travel; else the costliest chunks first. */
static bool fill_by_counts(const chunk_counts *counts, int ranks, bool near, int *rank_of) {
  const int n = counts->chunks;
  double *memory = calloc((size_t)n + 2 * (size_t)ranks, sizeof *memory);
  int *room = calloc((size_t)ranks, sizeof *room);
  costed *order = calloc((size_t)n, sizeof *order);
  const bool ready = memory != NULL && room != NULL && order != NULL;
  if (ready) {
    sharing s = {.counts = counts, .ranks = ranks, .rank_of = rank_of, .room = room, .cost = memory};
    s.load = memory + n, s.shared = s.load + ranks;
    for (int c = 0; c < n; ++c) {
      for (int j = 0; j < n; ++j) s.cost[c] += counts->tiles[(size_t)c * (size_t)n + (size_t)j];
      s.mean += s.cost[c] / ranks;
    }
    for (int r = 0; r < ranks; ++r) room[r] = n / ranks;
    if (near)
      take_parts(&s);
    else
      share_out(&s, order);
    for (int i = 0; i < MOST_SWAPS && swap_extremes(&s); ++i) continue;
  }
  free(order);
  free(room);
  free(memory);
  return ready;
}

bool partition_fill(luattn_partition partition, const chunk_counts *counts, int ranks, int *rank_of) {
  if (partition >= LUATTN_PARTITION_BY_COUNTS)
    return fill_by_counts(counts, ranks, partition == LUATTN_PARTITION_BY_TIME, rank_of);
  fill_parts(counts->chunks, ranks, partition == LUATTN_PARTITION_ZIGZAG, rank_of);
  return true;
}
