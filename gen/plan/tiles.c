/* tiles.c: computes the shared memory of tiles (abi/shared_memory.h), and checks which tiles a family can
 * run. */
#include "gen/plan/tiles.h"

#include "abi/shared_memory.h"
#include "common/fail.h"

static int max_of(int a, int b) { return a > b ? a : b; }

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

luattn_tiles plan_tiles(const plan *p) {
  return (luattn_tiles){p->tile_m, p->tile_n, p->threads, p->stages, p->sm80_warps_n, p->sm80_chunk_m};
}

bool plan_same_tiles(const luattn_tiles *a, const luattn_tiles *b) {
  return a->tile_m == b->tile_m && a->tile_n == b->tile_n && a->threads == b->threads &&
         a->stages == b->stages && a->warps_n == b->warps_n && a->chunk_m == b->chunk_m;
}

static bool is_sm90_backward(const plan *p) { return p->family == LUATTN_SM90 && p->pass == LUATTN_BACKWARD; }

bool tiles_wide(const plan *p) { return is_sm90_backward(p) && max_of(p->head_dim, p->head_dim_v) > 128; }

bool tiles_d256(const plan *p) { return tiles_wide(p) || (is_sm90_backward(p) && p->tile_n == 64); }

/* Blocks of the d256 backward share a kv tile in pairs. */
int tiles_walk_columns(const plan *p) { return (tiles_d256(p) ? 2 : 1) * p->tile_n; }

/* Returns the threads: a consumer warpgroup for each 64 rows (of q, or of k and v), plus one for the
 * producer. The d256 backward has separate warpgroups for scores, dk and dv. */
int tiles_sm90_threads(const plan *p) {
  if (tiles_d256(p)) return 512;
  return 128 + 2 * (p->pass == LUATTN_FORWARD ? p->tile_m : p->tile_n);
}

static LayoutSizes sizes_of(const plan *p, const plan_rows *r) {
  return (LayoutSizes){.head_dim = p->head_dim,
                       .head_dim_v = p->head_dim_v,
                       .tile_m = p->tile_m,
                       .tile_n = p->tile_n,
                       .threads = p->threads,
                       .stages = p->stages,
                       .elem = p->dtype == LUATTN_F64 ? 8 : 4,
                       .row = r->row_bytes,
                       .bwd_row = r->bwd_row_bytes,
                       .bias_elem = r->bias_row_bytes,
                       .col = r->col_bytes,
                       .warps_n = p->sm80_warps_n,
                       .has_terms = r->has_distance_term,
                       .hands_sums = p->deterministic && r->sums_distances,
                       .in_order = p->deterministic};
}

bool tiles_have_bias_rows(const plan *p, const plan_rows *r) {
  return fwd_sm90_layout(sizes_of(p, r)).has_bias_rows;
}

bool tiles_have_columns(const plan *p, const plan_rows *r) { return fwd_sm90_layout(sizes_of(p, r)).has_cols; }

int tiles_shared_bytes(const plan *p, luattn_role role, const plan_rows *rows) {
  const LayoutSizes s = sizes_of(p, rows);
  const bool sm80 = p->family == LUATTN_SM80, sm90 = p->family == LUATTN_SM90;
  switch (role) {
    case LUATTN_ROLE_FORWARD:
      return p->decode ? decode_layout(s).bytes : sm80 ? fwd_sm80_layout(s).bytes : sm90 ? fwd_sm90_layout(s).bytes : simt_bytes(s, 1);
    case LUATTN_ROLE_DKDV:
      return sm80            ? bwd_sm80_layout(s).bytes
             : tiles_d256(p) ? bwd_d256_layout(s).bytes
             : sm90          ? bwd_sm90_layout(s).bytes
                             : simt_bytes(s, 2);
    case LUATTN_ROLE_DQ:
      return simt_bytes(s, 2);
    default:
      return 0;
  }
}

/* Assumes that a backward row has two numbers, as for softmax; a spec with more may fail to fit later, in
 * plan_entries. */
int tiles_least_shared(const plan *p) {
  const plan_rows softmax = {.bwd_row_bytes = 8};
  return tiles_shared_bytes(p, p->pass == LUATTN_FORWARD ? LUATTN_ROLE_FORWARD : LUATTN_ROLE_DKDV, &softmax);
}

/* Returns the padded width of an sm90 product as a bit. */
static unsigned width_bit(int columns) { return 1u << ((columns + 15) / 16 - 1); }

/* Widths of scores, of dk and dv, and of a consumer's share of dq. */
static unsigned backward_widths(const plan *p) {
  if (tiles_d256(p)) return width_bit(64);
  const int boxes = (p->head_dim + 63) / 64;
  return width_bit(p->tile_m) | width_bit(p->head_dim) | width_bit(p->head_dim_v) |
         width_bit(boxes * (p->tile_m == 128 ? 64 : 32));
}

/* The least shared memory of all kernels of the pass: simt's backward has two. */
int tiles_least_shared_of(const plan *p, const plan_rows *rows) {
  if (p->pass == LUATTN_FORWARD) return tiles_shared_bytes(p, LUATTN_ROLE_FORWARD, rows);
  const int dkdv = tiles_shared_bytes(p, LUATTN_ROLE_DKDV, rows);
  const int dq = p->family == LUATTN_SIMT ? tiles_shared_bytes(p, LUATTN_ROLE_DQ, rows) : dkdv;
  return dq < dkdv ? dq : dkdv;
}

unsigned tiles_product_widths(const plan *p) {
  return p->pass == LUATTN_BACKWARD ? backward_widths(p) : width_bit(p->tile_n);
}

unsigned tiles_o_widths(const plan *p) { return width_bit(p->head_dim_v); }

bool tiles_prepares_stats(const plan *p, bool read_before) {
  return p->family == LUATTN_SM90 && p->pass == LUATTN_BACKWARD && !read_before;
}

plan_copies tiles_copies(const plan *p) {
  const bool backward = p->pass == LUATTN_BACKWARD;
  const bool half = p->dtype == LUATTN_F16 || p->dtype == LUATTN_BF16;
  plan_copies c = {.mod = half ? 8 : 1}; /* per_access in templates/arch/tensor.cuh */
  if (p->family == LUATTN_SIMT) {        /* backward does not unroll its loop over rows */
    c.col = max_of(p->tile_n / 16, 1);
    c.row = backward ? 1 : max_of(p->tile_m * 16 / p->threads, 1);
    c.element = c.row * c.col;
  } else if (backward && p->family == LUATTN_SM90) { /* transposed: two kv rows, shared by four threads */
    c.row = 1;
    c.col = 2;
    c.element = p->tile_m / 2;
  } else if (backward) { /* a chunk of columns at a time, for fragments of 16 kv rows */
    c.row = 1;
    c.col = 2 * p->tile_n / (16 * p->sm80_warps_n);
    c.element = c.col * p->sm80_chunk_m / 4;
  } else if (p->family == LUATTN_SM90) { /* fragments of 16 rows, shared by four threads */
    c.row = 2;
    c.col = (p->tile_n + 31) / 32;         /* a warp loads the columns' numbers; a mask's are not counted */
    c.element = c.row * 2 * p->tile_n / 4; /* the first kv tile has a copy of its own */
  } else if (p->decode) { /* a warp has all rows, or half of 64, and columns of its own or with the other half's warp */
    const int groups = decode_row_groups(p->tile_m);
    c.row = p->tile_m / groups / 8;
    c.col = p->tile_n / (p->threads / 32 / groups) / 4;
    c.element = c.row * c.col;
  } else {
    c.row = 2 * p->tile_m / (p->threads / 32) / 16;
    c.col = p->tile_n / 4;
    c.element = c.row * c.col;
  }
  c.col_apart = p->family == LUATTN_SM90 && !backward ? c.element / c.row : c.col; /* for each of a thread's columns */
  return c;
}

static luattn_status refuse(const char *name, int value, const char *rule, luattn_error *err) {
  return luattn_fail(err, LUATTN_INVALID,
                     "plan: %s: %d is not possible: %s; leave it 0 to let the plan choose", name, value,
                     rule);
}

static bool power_of_two(int x) { return x > 0 && (x & (x - 1)) == 0; }

static luattn_status check_simt(const plan *p, luattn_error *err) {
  const char *rule = "the simt family takes powers of two from 16 to 256";
  if (!power_of_two(p->tile_m) || p->tile_m < 16 || p->tile_m > 256)
    return refuse("tile_m", p->tile_m, rule, err);
  if (!power_of_two(p->tile_n) || p->tile_n < 16 || p->tile_n > 256)
    return refuse("tile_n", p->tile_n, rule, err);
  return LUATTN_OK;
}

static luattn_status check_sm80(const plan *p, luattn_error *err) {
  if (p->pass == LUATTN_FORWARD) {
    const int warps = p->threads / 32;
    if (p->tile_m != 16 * warps && p->tile_m != 32 * warps)
      return refuse("tile_m", p->tile_m,
                    "sm80 forward takes 64, 128 or 256: 16 or 32 rows for each of 4 or 8 warps", err);
    if (p->tile_n < 16 || p->tile_n % 16 != 0)
      return refuse("tile_n", p->tile_n, "sm80 forward takes multiples of 16", err);
    return LUATTN_OK;
  }
  const int warps_c = p->threads / 32 / p->sm80_warps_n, frags = p->tile_n / (16 * p->sm80_warps_n);
  if (p->tile_m < 16 || p->tile_m % (p->sm80_chunk_m * warps_c) != 0)
    return refuse("tile_m", p->tile_m,
                  "sm80 backward takes 32, 64 or 128, as the tables of sm80/bwd_sm80.cuh have them", err);
  if (frags < 1 || frags > 2 || frags * 16 * p->sm80_warps_n != p->tile_n)
    return refuse("tile_n", p->tile_n, "sm80 backward takes 32, 64, 128 or 256", err);
  return LUATTN_OK;
}

static luattn_status check_decode(const plan *p, luattn_error *err) {
  if (p->tile_m != 16 && p->tile_m != 32 && p->tile_m != 64) return refuse("tile_m", p->tile_m, "decode takes 16, 32 or 64", err);
  if (p->tile_m == 64 && (p->threads < 64 || p->tile_n % (p->threads / 4) != 0))
    return refuse("tile_n", p->tile_n, "decode takes multiples of 16 for two warps each where tile_m is 64", err);
  if (p->tile_n < 16 || (p->tile_m < 64 && p->tile_n % (p->threads / 2) != 0))
    return refuse("tile_n", p->tile_n, "decode takes multiples of 16 for each warp, 64 for four", err);
  if (p->tile_m == 64 && (p->head_dim <= 16 || p->head_dim_v <= 16) && p->tile_n % (p->threads / 2) != 0)
    return refuse("tile_n", p->tile_n, "decode takes multiples of 32 for two warps each where tile_m is 64 and a head dim at most 16", err);
  return LUATTN_OK;
}

static luattn_status check_sm90(const plan *p, luattn_error *err) {
  const bool narrow =
      p->head_dim <= 64 && p->head_dim_v <= 64; /* three consumers have 160 registers a thread */
  if (tiles_wide(p)) {
    if (p->tile_m != 64)
      return refuse("tile_m", p->tile_m, "sm90 backward takes 64 for head dims above 128", err);
    if (p->tile_n != 64)
      return refuse("tile_n", p->tile_n, "sm90 backward takes 64 for head dims above 128", err);
    return LUATTN_OK;
  }
  if (tiles_d256(p) && p->tile_m != 64)
    return refuse("tile_m", p->tile_m, "sm90 backward takes 64 where tile_n is 64", err);
  if (tiles_d256(p)) return LUATTN_OK;
  if (p->pass == LUATTN_BACKWARD) {
    if (p->tile_m != 64 && !(p->tile_m == 128 && narrow))
      return refuse("tile_m", p->tile_m, "sm90 backward takes 64, or 128 for head dims up to 64", err);
    if (p->tile_n != 128) return refuse("tile_n", p->tile_n, "sm90 backward takes 128, or 64 where tile_m is 64", err);
    return LUATTN_OK;
  }
  if (p->tile_m != 128 && !(p->tile_m == 192 && narrow))
    return refuse("tile_m", p->tile_m, "sm90 forward takes 128, or 192 for head dims up to 64", err);
  if (p->tile_n < 16 || p->tile_n % 16 != 0 || p->tile_n > 256)
    return refuse("tile_n", p->tile_n, "sm90 forward takes multiples of 16 up to 256", err);
  return LUATTN_OK;
}

luattn_status tiles_check(const plan *p, luattn_error *err) {
  if (p->family == LUATTN_SM90) return check_sm90(p, err);
  if (p->decode) return check_decode(p, err);
  return p->family == LUATTN_SM80 ? check_sm80(p, err) : check_simt(p, err);
}

bool tiles_may_have_bits(const plan *p) { return p->offsets == LUATTN_OFFSET_NONE && !p->decode; }

bool tiles_suit_cells(const plan *p) {
  return !p->by_cells || (power_of_two(p->tile_n) && (power_of_two(p->tile_m) || !p->by_query_blocks));
}
