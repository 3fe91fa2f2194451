/* tiles.c: the arithmetic of tiles that is the same in all families. */
#include "gen/plan/tiles.h"

#include "abi/grid_params.h"
#include "abi/manifest.h"
#include "common/call/limits.h"
#include "common/fail.h"
#include "gen/plan/policy.h"

int tiles_shared_limit(int arch) {
  switch (arch) {
    case 80:
    case 87:
      return 163 * 1024;
    case 86:
    case 89:
    case 120:
    case 121:
      return 99 * 1024;
    case 90:
    case 100:
    case 101:
    case 103:
    case 110:
      return LUATTN_SM90_SHARED_BYTES; /* 227 KB */
    default:
      return 0;
  }
}

void tiles_box(const plan *p, bool keys, int box[LUATTN_MAX_AXES]) { family_box(p, keys, box); }

/* Blocks of so many bytes on a multiprocessor, where the system has 1 KB of each and they share it. */
static int blocks_of(const plan *p, int bytes) {
  return plan_kernel(p)->shares_multiprocessor ? (p->shared_limit + 1024) / (bytes + 1024) : 1;
}

bool tiles_have_displacements(const plan *p) {
  const plan_rows rows = {.bwd_row_bytes = 2 * 4, .has_displacement_term = true}, without = {.bwd_row_bytes = 2 * 4};
  const family_kernel *kernel = plan_kernel(p);
  int columns[LUATTN_MAX_AXES]; /* of scores: a lane has two of each four */
  if (p->axes == 0 || !kernel->has_displacement_terms) return false;
  family_box(p, p->pass == LUATTN_FORWARD, columns);
  const int bytes = kernel->shared_bytes(plan_sizes(p, &rows));
  return columns[LUATTN_MAX_AXES - 1] % 4 == 0 && family_displacements(p) <= POLICY_MOST_DISPLACEMENTS &&
         bytes <= p->shared_limit && blocks_of(p, bytes) == blocks_of(p, kernel->shared_bytes(plan_sizes(p, &without)));
}

bool tiles_sum_displacements(const plan *p) {
  const plan_rows rows = {.bwd_row_bytes = 2 * 4, .has_displacement_term = true, .sums_distances = true};
  const family_kernel *kernel = plan_kernel(p);
  return p->axes > 0 && kernel->sums_displacements != NULL && kernel->sums_displacements(p) &&
         kernel->shared_bytes(plan_sizes(p, &rows)) <= p->shared_limit;
}

bool tiles_free_boxes(const plan *p) { return p->axes > 0 && plan_kernel(p)->free_boxes; }

bool tiles_step(const plan *p) {
  bool steps = false;
  for (int a = 0; a < LUATTN_MAX_AXES; a++) steps |= p->step[a] > 1;
  return steps;
}

/* The outermost of four axes is none of a descriptor's. */
bool tiles_is_far(const plan *p, int axis) {
  int q[LUATTN_MAX_AXES], kv[LUATTN_MAX_AXES];
  if (axis == 0 || p->step[axis] == 1 || !traits_of_family[p->family->id].takes_descriptors) return false;
  family_box(p, false, q), family_box(p, true, kv);
  return grid_step_is_far(p->step[axis], q[axis] > kv[axis] ? q[axis] : kv[axis]) != 0;
}

bool tiles_step_far(const plan *p) {
  bool far = false;
  for (int a = 0; a < LUATTN_MAX_AXES; a++) far |= tiles_is_far(p, a);
  return far;
}

bool tiles_have_phases(const plan *p) {
  bool any = false;
  for (int a = 0; a < LUATTN_MAX_AXES; a++) any |= p->phase[a] > 0;
  return any;
}

bool tiles_copies_o(const plan *p) { return p->pass == LUATTN_FORWARD && !p->out_f32 && tiles_step_far(p); }

luattn_tiles plan_tiles(const plan *p) {
  return (luattn_tiles){p->tile_m, p->tile_n, p->threads, p->stages, p->sm80_warps_n, p->sm80_chunk_m};
}

bool plan_same_tiles(const luattn_tiles *a, const luattn_tiles *b) {
  return a->tile_m == b->tile_m && a->tile_n == b->tile_n && a->threads == b->threads && a->stages == b->stages &&
         a->warps_n == b->warps_n && a->chunk_m == b->chunk_m;
}

int tiles_walk_columns(const plan *p) { return (plan_kernel(p)->pairs_tiles ? 2 : 1) * p->tile_n; }

bool tiles_have_columns(const plan *p, const plan_rows *rows) {
  return p->axes == 0 && fwd_sm90_layout(plan_sizes(p, rows)).has_cols;
}

int tiles_shared_bytes(const plan *p, const plan_rows *rows) {
  return plan_kernel(p)->shared_bytes(plan_sizes(p, rows));
}

/* Assumes that a backward row has two numbers, as for softmax; a spec with more may fail to fit later, in
 * plan_entries. */
int tiles_least_shared(const plan *p) {
  const plan_rows softmax = {.bwd_row_bytes = 8};
  return tiles_shared_bytes(p, &softmax);
}

bool tiles_prepares_stats(const plan *p, bool read_before) { return plan_kernel(p)->prepares_stats && !read_before; }

plan_copies tiles_copies(const plan *p) {
  plan_copies c = plan_kernel(p)->copies(p);
  c.mod = (1u << p->dtype & FAMILY_HALVES) != 0 ? 8 : 1; /* per_access in templates/arch/tensor.cuh */
  if (c.col_apart == 0) c.col_apart = c.col;
  return c;
}

luattn_status tiles_check(const plan *p, luattn_error *err) {
  if (!tiles_suit_chunks(p))
    return luattn_fail(
        err, LUATTN_INVALID,
        "target: tile_m, tile_n: are %d and %d, and chunks have multiples of %d rows, which tiles divide; "
        "give divisors of %d, or leave them 0",
        p->tile_m, tiles_walk_columns(p), LUATTN_CHUNK_MULTIPLE, LUATTN_CHUNK_MULTIPLE);
  return plan_kernel(p)->check(p, err);
}

static bool power_of_two(int x) { return x > 0 && (x & (x - 1)) == 0; }

bool tiles_may_have_bits(const plan *p) { return p->offsets == LUATTN_OFFSET_NONE && !p->family->merges; }

bool tiles_suit_chunks(const plan *p) {
  return p->offsets != LUATTN_OFFSET_CHUNKS ||
         (plan_kernel(p)->takes_chunks && LUATTN_CHUNK_MULTIPLE % p->tile_m == 0 &&
          LUATTN_CHUNK_MULTIPLE % tiles_walk_columns(p) == 0);
}

bool tiles_suit_cells(const plan *p) {
  return !p->by_cells || (power_of_two(p->tile_n) && (power_of_two(p->tile_m) || !p->by_query_blocks));
}
