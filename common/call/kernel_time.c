#include "common/call/kernel_time.h"

#include <math.h>

#include "common/call/choices.h"
#include "luattn/tensors.h"

/* Fitted to 404 calls on one H200 (bench/journal/decode.md, 11): 1 to 256 entries, 64 to 8192 keys, 1 to 64 rows of a
 * kv head, head dims 64 to 256, dense and over pages, K and V from memory. The kernel that these choose took 1.0008
 * times as long as the faster one in the mean, and 1.08 times at most. Times are in microseconds. */
static const double memory = 4.3e6 / 132; /* bytes that memory delivers for a multiprocessor */
static const double launch = 1.2;         /* before and after all blocks */
static const double merge = 2.8;          /* luattn_merge, which is another launch */
static const double uneven_end = 0.35;    /* of the rate, where the last round of blocks has next to none */
static const double general_launch = 3;   /* of the kernel for all lengths */
static const double general_tile = 1.5;   /* before and after the keys of a tile of 128 queries */
static const double general_share = 0.93; /* of memory's rate that it reaches */
enum { GENERAL_ROWS = 128, GENERAL_KEYS = 128, MEASURED_ROWS = 512 };

/* What depends on the rows of a tile. */
typedef struct decode_tile {
  int tile_m;
  double first, next; /* a block before its first keys and after its last; the same of each later round of blocks */
  double alone; /* a block's share of memory's rate, in those of a multiprocessor, while it is the only one there */
  double most;  /* the share of memory's rate that all blocks reach */
} decode_tile;
static const decode_tile decode_tiles[] = {
    {16, 1.5, 0.7, 1.36, 1}, {32, 2.6, 2.6, 1.03, 0.97}, {64, 4.0, 4.7, 0.75, 0.93}};

static const decode_tile *tile_of(int tile_m) { return &decode_tiles[tile_m <= 16 ? 0 : tile_m <= 32 ? 1 : 2]; }

/* ceil, fmin and fmax of numbers from 0 to 2^63, which a launch asks for some hundred times. */
static inline double up(double x) {
  const double whole = (double)(int64_t)x;
  return whole < x ? whole + 1 : whole;
}
static inline double least_of(double a, double b) { return a < b ? a : b; }
static inline double most_of(double a, double b) { return a > b ? a : b; }

/* The share of memory's rate that so many blocks reach. Some multiprocessors have a block more than others at the end,
 * which loses a part. */
static double rate(const decode_tile *t, const decode_sizes *s, double blocks) {
  const double filled = blocks / s->multiprocessors, resident = (double)s->multiprocessors * s->blocks_each;
  if (filled <= 1) return least_of(t->alone * filled, t->most);
  return t->most * (1 - uneven_end * (1 - blocks / (up(blocks / resident) * resident)));
}

/* Warps take keys by tiles, so that a split of part of a tile takes as long as one of all. */
double decode_time(const decode_sizes *s, int splits) {
  const decode_tile *t = tile_of(s->tile_m);
  const double blocks = s->tiles * splits, row = (s->head_dim + s->head_dim_v) * 2.0, bytes = s->tiles * s->keys * row,
               part = 2.0 * s->tile_m * s->head_dim_v * 4, own = up(s->longest / splits / s->tile_n) * s->tile_n,
               longest = own * row / (least_of(t->alone / s->multiprocessors, 1)),
               rounds = up(blocks / ((double)s->multiprocessors * s->blocks_each)),
               sums = splits > 1 ? merge + blocks * part / (memory * s->multiprocessors) : 0;
  return launch + t->first + (rounds - 1) * t->next +
         most_of(bytes / rate(t, s, blocks), longest) / (memory * s->multiprocessors) + sums;
}

/* More blocks than run at once four times bring nothing where all entries are as long; where some are longer than
 * others, no block should take longer than all of the rest. */
int decode_best_splits(const decode_sizes *s, double *time) {
  const double most = up(s->longest / s->tile_n), resident = (double)s->multiprocessors * s->blocks_each;
  int best = 1;
  *time = 0;
  if (!(s->tiles > 0)) return 1;
  for (int n = 1; n <= CHOICES_MAX_SPLITS && (n == 1 || n <= most); ++n) {
    if (n > 1 && s->tiles * n > 4 * resident && s->keys >= s->longest) break;
    const double of_n = decode_time(s, n);
    if (n == 1 || of_n < *time) best = n, *time = of_n;
  }
  return best;
}

/* The tiles of gen/family/decode.c for so many rows. */
static decode_sizes sizes_of(const forward_sizes *f, double rows) {
  const int dim = f->head_dim > f->head_dim_v ? f->head_dim : f->head_dim_v, tile_m = rows <= LUATTN_DECODE_TILE   ? 16
                                                                                      : rows <= LUATTN_DECODE_MANY ? 32
                                                                                      : dim <= 64                  ? 32
                                                                                                                   : 64;
  const double group = (double)f->heads / (double)f->heads_kv,
               tiles = fmin(ceil(rows / tile_m) * f->entries, floor(f->all_queries * group / tile_m) + f->entries);
  return (decode_sizes){.tiles = tiles * (double)f->heads_kv,
                        .keys = f->keys,
                        .longest = f->longest,
                        .tile_m = tile_m,
                        .tile_n = dim <= 64 ? 128 : 64,
                        .head_dim = f->head_dim,
                        .head_dim_v = f->head_dim_v,
                        .multiprocessors = f->multiprocessors,
                        .blocks_each = dim <= 128 ? 2 : 1};
}

/* A persistent block for each multiprocessor takes tiles of the queries of a query head in rounds; K and V come from
 * memory once for all query heads of a kv head. */
static double general_time(const forward_sizes *f) {
  const int dim = f->head_dim > f->head_dim_v ? f->head_dim : f->head_dim_v;
  const double of_keys = dim <= 64    ? 1.1
                         : dim <= 128 ? 1.2
                                      : 1.2 + (dim - 128) * 0.007,
               tiles = fmin(ceil(f->queries / GENERAL_ROWS) * f->entries,
                            floor(f->all_queries / GENERAL_ROWS) + f->entries),
               rounds = ceil(tiles * (double)f->heads / f->multiprocessors),
               bytes = f->entries * (double)f->heads_kv * f->keys * (f->head_dim + f->head_dim_v) * 2;
  return general_launch + fmax(rounds * (general_tile + of_keys * fmax(1, ceil(f->keys / GENERAL_KEYS))),
                               bytes / (memory * f->multiprocessors * general_share));
}

kernel_times kernel_times_of(const forward_sizes *f) {
  kernel_times times = {.rows = f->queries * (double)f->heads / (double)f->heads_kv, .general = general_time(f)};
  times.as_decode = sizes_of(f, times.rows);
  times.splits = decode_best_splits(&times.as_decode, &times.decode);
  return times;
}

bool kernel_takes_decode(const forward_sizes *f) {
  const double general = general_time(f), rows = f->queries * (double)f->heads / (double)f->heads_kv;
  const decode_sizes s = sizes_of(f, rows);
  double best;
  if (!(rows <= MEASURED_ROWS)) return false;
  if (decode_time(&s, 1) <= general) return true;
  (void)decode_best_splits(&s, &best);
  return best <= general;
}
