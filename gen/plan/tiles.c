/* tiles.c: tiles by pass, head dims and shared memory. What the kernel headers say is good
 * (simt/fwd_simt.cuh, simt/bwd_simt.cuh, sm80/fwd_sm80.cuh, sm80/bwd_sm80.cuh, sm90/fwd/fwd_sm90.cuh,
 * sm90/bwd/bwd_sm90.cuh) is tabled here. */
#include "abi/shared_memory.h"
#include "common/fail.h"
#include "gen/plan/plan.h"

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

/* Rows of a table: for head dims up to max_dim and shared memory of these classes, the first choice first,
 * then what needs fewer registers. */
enum {
  SMALL = 1,
  MIDDLE = 2,
  LARGE = 4,
  ANY = 7, /* 99, 163, 227 KB */
  NOT_SHORT = 8
}; /* not for short lengths with a mask */
typedef struct tile_row {
  int classes, max_dim;
  luattn_tiles choice;
} tile_row;

static const tile_row simt_forward_f32[] = {{ANY, 256, {64, 64, 256, 2, 0, 0}},
                                            {ANY, 256, {64, 32, 256, 2, 0, 0}},
                                            {ANY, 256, {32, 32, 256, 2, 0, 0}},
                                            {ANY, 256, {16, 32, 256, 2, 0, 0}}};
static const tile_row simt_backward_f32[] = {{ANY, 128, {64, 64, 128, 2, 0, 0}},
                                             {ANY, 256, {64, 64, 256, 2, 0, 0}},
                                             {ANY, 256, {32, 32, 256, 2, 0, 0}},
                                             {ANY, 256, {16, 16, 256, 2, 0, 0}}};
static const tile_row simt_f64[] = {{ANY, 128, {32, 32, 128, 2, 0, 0}},
                                    {ANY, 256, {32, 32, 256, 2, 0, 0}},
                                    {ANY, 256, {32, 16, 256, 2, 0, 0}},
                                    {ANY, 256, {16, 16, 256, 2, 0, 0}}};
static const tile_row sm80_forward[] = {
    {ANY, 64, {128, 64, 128, 2, 0, 0}},     {SMALL, 96, {128, 64, 128, 1, 0, 0}},
    {MIDDLE, 96, {128, 64, 128, 2, 0, 0}},  {SMALL, 128, {128, 32, 128, 1, 0, 0}},
    {MIDDLE, 128, {128, 64, 128, 1, 0, 0}}, {LARGE, 128, {128, 64, 128, 2, 0, 0}},
    {MIDDLE, 192, {64, 64, 128, 1, 0, 0}},  {MIDDLE, 256, {128, 64, 256, 1, 0, 0}},
    {LARGE, 256, {128, 64, 256, 2, 0, 0}},  {ANY, 256, {64, 64, 128, 1, 0, 0}},
    {ANY, 256, {64, 32, 128, 1, 0, 0}},     {ANY, 256, {64, 16, 128, 1, 0, 0}}};
/* Three consumers at short lengths: what 192 queries leave empty of a last tile, and what a masked tile of
 * them computes in vain, is more than they gain. */
static const tile_row sm90_forward[] = {{ANY | NOT_SHORT, 64, {192, 128, 512, 3, 0, 0}},
                                        {ANY | NOT_SHORT, 64, {192, 96, 512, 3, 0, 0}},
                                        {ANY, 64, {128, 128, 384, 3, 0, 0}},
                                        {ANY, 192, {128, 128, 384, 2, 0, 0}},
                                        {ANY, 192, {128, 112, 384, 2, 0, 0}},
                                        {ANY, 192, {128, 96, 384, 2, 0, 0}},
                                        {ANY, 256, {128, 96, 384, 2, 0, 0}},
                                        {ANY, 256, {128, 80, 384, 2, 0, 0}},
                                        {ANY, 256, {128, 64, 384, 2, 0, 0}},
                                        {ANY, 256, {128, 32, 384, 2, 0, 0}}};
static const tile_row sm90_backward[] = {{ANY, 64, {128, 128, 384, 2, 0, 0}},
                                         {ANY, 128, {64, 128, 384, 2, 0, 0}}};
static const tile_row sm90_backward_wide[] = {{ANY, 256, {64, 64, 512, 2, 0, 0}}};
static const tile_row sm80_backward[] = {{SMALL | LARGE, 64, {128, 128, 128, 1, 4, 32}},
                                         {MIDDLE, 64, {64, 128, 128, 1, 4, 32}},
                                         {ANY, 64, {64, 128, 128, 1, 4, 16}},
                                         {ANY, 64, {64, 128, 256, 1, 4, 32}},
                                         {SMALL, 128, {32, 128, 256, 1, 4, 16}},
                                         {MIDDLE, 128, {64, 128, 256, 1, 4, 32}},
                                         {LARGE, 128, {64, 128, 256, 2, 4, 32}},
                                         {MIDDLE | LARGE, 128, {32, 128, 256, 1, 4, 16}},
                                         {ANY, 128, {64, 64, 256, 1, 4, 32}},
                                         {MIDDLE, 256, {64, 64, 256, 1, 4, 32}},
                                         {LARGE, 256, {64, 64, 256, 2, 4, 32}},
                                         {ANY, 256, {32, 32, 128, 1, 2, 16}},
                                         {ANY, 256, {32, 64, 256, 1, 4, 16}}};

#define TABLE(t) \
  { t, (int)(sizeof t / sizeof t[0]) }

/* Where small dots are weighed apart, a score takes some eight instructions. They are what binds, and a third
 * consumer finds the time for more of them. */
static const luattn_tiles for_small_dots = {192, 80, 512, 3, 0, 0};
static bool weighs_small_dots(const plan *p, int dim) {
  return p->small_dots && p->family == LUATTN_SM90 && p->pass == LUATTN_FORWARD && dim > 64 && dim <= 128;
}

static int class_of(int shared_limit) {
  return shared_limit < 150 * 1024 ? SMALL : shared_limit < 200 * 1024 ? MIDDLE : LARGE;
}

bool tiles_choice(const plan *p, int rank, luattn_tiles *out) {
  enum { SIMT_F64 = LUATTN_SM90 + 1, SM90_WIDE };
  static const struct {
    const tile_row *row;
    int count;
  } tables[][2] = {[LUATTN_SIMT] = {TABLE(simt_forward_f32), TABLE(simt_backward_f32)},
                   [LUATTN_SM80] = {TABLE(sm80_forward), TABLE(sm80_backward)},
                   [LUATTN_SM90] = {TABLE(sm90_forward), TABLE(sm90_backward)},
                   [SIMT_F64] = {TABLE(simt_f64), TABLE(simt_f64)},
                   [SM90_WIDE] = {{NULL, 0}, TABLE(sm90_backward_wide)}};
  const int family = p->dtype == LUATTN_F64 ? (int)SIMT_F64 : tiles_wide(p) ? (int)SM90_WIDE : (int)p->family;
  const int backward = p->pass == LUATTN_BACKWARD;
  const int dim = max_of(p->head_dim, p->head_dim_v), class = class_of(p->shared_limit);
  const tile_row *row = tables[family][backward].row;
  if (weighs_small_dots(p, dim)) {
    if (rank == 0) {
      *out = for_small_dots;
      return true;
    }
    rank--;
  }
  for (int i = 0; i < tables[family][backward].count; i++) {
    if (dim > row[i].max_dim || (row[i].classes & class) == 0) continue;
    if ((p->is_short && (row[i].classes & NOT_SHORT) != 0) || rank-- > 0) continue;
    *out = row[i].choice;
    return true;
  }
  return false;
}

bool tiles_wide(const plan *p) {
  return p->family == LUATTN_SM90 && p->pass == LUATTN_BACKWARD && max_of(p->head_dim, p->head_dim_v) > 128;
}

/* The wide backward's blocks share a tile two by two. */
int tiles_walk_columns(const plan *p) { return (tiles_wide(p) ? 2 : 1) * p->tile_n; }

/* 64 rows, of q or of k and v, for a warpgroup, and one more. The wide backward has warpgroups for its
 * scores, dk and dv. */
int tiles_sm90_threads(const plan *p) {
  if (tiles_wide(p)) return 512;
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
                       .line_elem = r->line_bytes,
                       .col = r->col_bytes,
                       .warps_n = p->sm80_warps_n,
                       .has_terms = r->has_distance_term,
                       .hands_sums = p->deterministic && r->sums_distances,
                       .in_order = p->deterministic};
}

bool tiles_have_lines(const plan *p, const plan_rows *r) { return fwd_sm90_layout(sizes_of(p, r)).has_lines; }

int tiles_shared_bytes(const plan *p, luattn_role role, const plan_rows *rows) {
  const LayoutSizes s = sizes_of(p, rows);
  const bool sm80 = p->family == LUATTN_SM80, sm90 = p->family == LUATTN_SM90;
  switch (role) {
    case LUATTN_ROLE_FORWARD:
      return sm80 ? fwd_sm80_layout(s).bytes : sm90 ? fwd_sm90_layout(s).bytes : simt_bytes(s, 1);
    case LUATTN_ROLE_DKDV:
      return sm80            ? bwd_sm80_layout(s).bytes
             : tiles_wide(p) ? bwd_d256_layout(s).bytes
             : sm90          ? bwd_sm90_layout(s).bytes
                             : simt_bytes(s, 2);
    case LUATTN_ROLE_DQ:
      return simt_bytes(s, 2);
    default:
      return 0;
  }
}

/* A spec that keeps more than softmax, which has two numbers for a row of backward, may turn out not to fit
 * in plan_entries. */
int tiles_least_shared(const plan *p) {
  const plan_rows softmax = {.bwd_row_bytes = 8};
  return tiles_shared_bytes(p, p->pass == LUATTN_FORWARD ? LUATTN_ROLE_FORWARD : LUATTN_ROLE_DKDV, &softmax);
}

plan_copies tiles_copies(const plan *p) {
  const bool backward = p->pass == LUATTN_BACKWARD;
  const bool half = p->dtype == LUATTN_F16 || p->dtype == LUATTN_BF16;
  plan_copies c = {.mod = half ? 8 : 1}; /* per_access in templates/arch/tensor.cuh */
  if (p->family == LUATTN_SIMT) {        /* backward rolls its loop over rows */
    c.col = max_of(p->tile_n / 16, 1);
    c.row = backward ? 1 : max_of(p->tile_m * 16 / p->threads, 1);
    c.element = c.row * c.col;
  } else if (backward && p->family == LUATTN_SM90) { /* transposed: two kv rows, four threads share them */
    c.row = 1;
    c.col = 2;
    c.element = p->tile_m / 2;
  } else if (backward) { /* a chunk of columns at a time, for fragments of 16 kv rows */
    c.row = 1;
    c.col = 2 * p->tile_n / (16 * p->sm80_warps_n);
    c.element = c.col * p->sm80_chunk_m / 4;
  } else if (p->family == LUATTN_SM90) { /* fragments of 16 rows; four threads share a row */
    c.row = 2;
    c.col = (p->tile_n + 31) / 32;         /* a warp fetches the columns' numbers; a mask's are not counted */
    c.element = c.row * 2 * p->tile_n / 4; /* the first kv tile has code of its own */
  } else {
    c.row = 2 * p->tile_m / (p->threads / 32) / 16;
    c.col = p->tile_n / 4;
    c.element = c.row * c.col;
  }
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
  if (p->pass == LUATTN_BACKWARD) {
    if (p->tile_m != 64 && !(p->tile_m == 128 && narrow))
      return refuse("tile_m", p->tile_m, "sm90 backward takes 64, or 128 for head dims up to 64", err);
    if (p->tile_n != 128) return refuse("tile_n", p->tile_n, "sm90 backward takes 128", err);
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
  return p->family == LUATTN_SM80 ? check_sm80(p, err) : check_simt(p, err);
}
