/* linear_recurrent.c: linear attention token by token, with the state in registers (templates/linear/recurrent). */
#include "abi/kernel_facts.h"
#include "abi/linear_params.h"
#include "common/fail.h"
#include "gen/analysis/linear/linear_adjoint.h"
#include "gen/plan/linear_family.h"
#include "gen/plan/tiles.h"

enum { LEAST_DIM = 8, MOST_DIM = 256, MOST_WARPS = 4, THREADS_OF_MULTIPROCESSOR = 512 };
/* Of a ring: rows, tokens of a step, and bytes of shared memory, of which two blocks of sm_80 find room. */
enum { MOST_ROWS = 32, MOST_TOKENS = 16, MOST_SHARED = 80 << 10 };
enum { RING_WARPS = 8, PAIR_DIM = 128 }; /* of a ring's block; the most of K where tensor cores take states of bf16 */
enum { STEP_WARPS = 4 }; /* of luattn_linear_step, besides those that have a state: StepRoles of step_parts.cuh */

static luattn_status check_dim(const char *name, int x, luattn_error *err) {
  if (x % LEAST_DIM == 0 && x <= MOST_DIM) return LUATTN_OK;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "target: %s: is %d, and kernels of linear attention take multiples of %d up to %d; run it on the "
                     "CPU",
                     name, x, LEAST_DIM, MOST_DIM);
}

static luattn_status check_any(const luattn_target *t, luattn_error *err) {
  if (t->arch < 80)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "target: arch: is sm_%d, and linear attention has kernels for sm_80 and newer; run it on the CPU", t->arch);
  TRY(check_dim("head_dim", t->head_dim, err));
  return check_dim("head_dim_v", t->head_dim_v, err);
}

static bool is_double(const linear_plan *p) { return p->dtype == LUATTN_F64; }
/* Of the numbers that kernels compute in. */
static int number_bytes(const linear_plan *p) { return is_double(p) ? 8 : 4; }
static const char *number_of(const linear_plan *p) { return is_double(p) ? "double" : "float"; }

/* Numbers of a token's rows in shared memory, of so many value channels: TokenLayout of recurrent_shape.cuh. */
static int row_size_of(const derived_linear *d, const linear_plan *p, int values) {
  const int k = (p->k_dim + 31) / 32 * 32;
  const int of_k = 2 + d->class.reads + d->class.erases + (d->class.decay == LINEAR_DECAY_CHANNEL);
  return of_k * k + (2 + d->hook[LINEAR_SKIP].given) * values + 4;
}

static int row_size(const derived_linear *d, const linear_plan *p) { return row_size_of(d, p, p->v_block); }

static luattn_status check(const luattn_target *t, luattn_error *err) {
  if (t->decode == 2)
    return luattn_fail(err, LUATTN_UNSUPPORTED, "target: decode: is 2, and this kernel has no ring; give 0 or 1");
  return check_any(t, err);
}

static luattn_status check_ring(const luattn_target *t, luattn_error *err) {
  if (t->decode != 2)
    return luattn_fail(err, LUATTN_UNSUPPORTED, "target: decode: is %d, and this kernel has a ring; give 2", t->decode);
  if (t->dtype == LUATTN_F64)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "target: dtype: is f64, and kernels of rings compute in f32; convert q, k and v, or step without "
        "a ring");
  return check_any(t, err);
}

static const char *explain(arena *a, const linear_plan *p, const derived_linear *d, int batch) {
  return arena_printf(a,
                      "linear attention of class L%d token by token: the state stays in registers, and is read and "
                      "written once\n"
                      "a warp has all of K and %d value channels, a block at most %d; rows of %d tokens at once lie in "
                      "shared memory\n"
                      "%s\n",
                      (int)d->class.number, p->v_warp, p->v_block, batch,
                      d->class.normalizes ? "one block a value head: all of its channels are divided by one sum"
                                          : "where value heads are few, blocks of a launch have fewer value channels");
}

/* Whether there is a kernel whose states TMA copies besides, which a launch takes where these are many and tokens are few; the sum
 * of normalize belongs to all blocks of a head, whose order it does not keep. */
static bool has_step(const derived_linear *d, const luattn_target *t) {
  return t->decode == 1 && t->arch >= 90 && t->dtype != LUATTN_F64 && !d->class.normalizes;
}

/* Config and the entry of both kernels, whose rows take so many bytes. */
static void add_kernel(arena *a, const derived_linear *d, const luattn_target *t, linear_plan *p, int warps, int batch,
                       int ring, int bytes) {
  const int threads = 32 * warps, room = tiles_shared_limit(t->arch);
  p->normalizes = d->class.normalizes;
  p->room = t->decode > 0 ? room : 0;
  p->constants =
      arena_printf(a,
                   "  using Number = %s;\n"
                   "  static constexpr int v_lane = %d, batch = %d, ring = %d, run = 0, threads = %d, blocks = %d;\n",
                   number_of(p), p->v_warp / 4, batch, ring, threads, THREADS_OF_MULTIPROCESSOR / threads);
  linear_plan_add(p, "luattn_linear", LUATTN_ROLE_LINEAR, threads, bytes);
}

/* The warps of a block, whose part of the state is in registers at once. v_block: value channels whose rows it has: those, or
 * `whole`, all of a head. */
static int start(linear_plan *p, bool whole, int most) {
  p->v_warp = 4 * (p->k_dim > 128 ? 2 : 4) / (is_double(p) ? 2 : 1);
  int warps = (p->v_dim + p->v_warp - 1) / p->v_warp;
  if (warps > most) warps = most;
  const int part = warps * p->v_warp;
  p->v_part = part;
  p->v_block = whole ? (p->v_dim + part - 1) / part * part : part;
  return warps;
}

/* Kernels that take states of bf16 by tensor cores (PairedRingState of ring_states.cuh): bytes besides a ring's, threads. */
static bool has_pairs(const linear_plan *p) { return p->k_dim <= PAIR_DIM; }

static int pair_bytes(const linear_plan *p, int batch) {
  return has_pairs(p) ? linear_ring_pair_bytes(batch, (p->k_dim + 31) / 32 * 32) : 0;
}

static int pair_threads(const linear_plan *p) {
  const int warps = (p->v_dim + LINEAR_RING_PAIR_VALUES - 1) / LINEAR_RING_PAIR_VALUES;
  return 32 * warps < LINEAR_RING_PAIR_THREADS ? 32 * warps : LINEAR_RING_PAIR_THREADS;
}

static const char step_said[] =
    "where value heads are many, at most 16 tokens of each, states come and go by TMA, several on their way at once; "
    "of one token, states along K are of small blocks in the order of memory\n";

static const char tokens_said[] =
    "2 to 8 tokens and states of bf16 along K are multiplied by tensor cores, all tokens at once\n";

/* Of kernels of one token: its rows, and a block's part of a state of numbers of so many bytes. */
static int part_bytes(const derived_linear *d, const linear_plan *p, int values, int size) {
  return (4 * row_size_of(d, p, values) + 127) / 128 * 128 + size * values * p->k_dim;
}

/* Whether tensor cores take states of bf16 along K, and all of a step's tokens at once: TakesTokens of step_tokens.cuh. */
static bool takes_tokens(const derived_linear *d, const linear_plan *p) {
  return (p->dtype == LUATTN_BF16 || p->dtype == LUATTN_F16) && d->class.decay != LINEAR_DECAY_CHANNEL &&
         !d->class.erases && p->k_dim <= LINEAR_PART_KEYS;
}

static void add_tokens(const derived_linear *d, linear_plan *p) {
  if (!takes_tokens(d, p)) return;
  const int skips = d->hook[LINEAR_SKIP].given;
  linear_plan_add(p, "luattn_linear_tokens", LUATTN_ROLE_LINEAR_TOKENS, LINEAR_TOKENS_THREADS,
                  linear_tokens_places(LINEAR_TOKENS_FEW, p->k_dim, skips).size);
  linear_plan_add(p, "luattn_linear_tokens_more", LUATTN_ROLE_LINEAR_TOKENS_MORE, LINEAR_TOKENS_THREADS,
                  linear_tokens_places(LINEAR_TOKENS_MORE, p->k_dim, skips).size);
}

static void add_step(const derived_linear *d, const luattn_target *t, linear_plan *p, int warps) {
  if (!has_step(d, t)) return;
  p->source = "entry/linear_step.cu";
  const int first = p->num_entries;
  p->token_numbers = row_size_of(d, p, (p->v_dim + p->v_part - 1) / p->v_part * p->v_part);
  if (p->k_dim <= LINEAR_PART_KEYS) {
    linear_plan_add(p, "luattn_linear_part", LUATTN_ROLE_LINEAR_PART, LINEAR_PART_THREADS,
                    part_bytes(d, p, LINEAR_PART_VALUES, 4));
    linear_plan_add(p, "luattn_linear_part_half", LUATTN_ROLE_LINEAR_PART_HALF, LINEAR_PART_THREADS,
                    part_bytes(d, p, LINEAR_PART_HALF_VALUES, 2));
  }
  add_tokens(d, p);
  for (int i = first; i < p->num_entries; i++) p->entry[i].early = true;
  linear_plan_add(p, "luattn_linear_step", LUATTN_ROLE_LINEAR_STEP, 32 * (warps + STEP_WARPS),
                  tiles_shared_limit(t->arch) / 2 - 512);
}

static void plan_walk(arena *a, const luattn_spec *spec, const luattn_target *t, linear_plan *p) {
  const derived_linear *d = spec->linear;
  int batch = 16;
  const int warps = start(p, false, MOST_WARPS);
  while (batch > 1 && batch * row_size(d, p) * number_bytes(p) > 24 << 10) batch /= 2;
  p->source = "entry/linear_recurrent.cu";
  add_kernel(a, d, t, p, warps, batch, 0, batch * row_size(d, p) * number_bytes(p));
  add_step(d, t, p, warps);
  p->why = explain(a, p, d, batch);
  if (has_step(d, t)) p->why = arena_printf(a, "%s%s%s", p->why, step_said, takes_tokens(d, p) ? tokens_said : "");
}

static int ring_bytes(const derived_linear *d, const linear_plan *p, int batch, int ring) {
  const int k = (p->k_dim + 31) / 32 * 32;
  const int width = d->class.decay == LINEAR_DECAY_CHANNEL ? k : d->class.decay != LINEAR_DECAY_NONE;
  return 4 * linear_ring_places(batch, row_size(d, p), ring, k, p->v_block, width, 1, d->class.erases).numbers;
}

static const char pairs_said[] =
    "products of checkpoints of bf16 along K are of tensor cores, with q and r as sums of three numbers of bf16\n";

static void plan_ring(arena *a, const luattn_spec *spec, const luattn_target *t, linear_plan *p) {
  const derived_linear *d = spec->linear;
  int batch = MOST_TOKENS, ring = MOST_ROWS;
  const int warps = start(p, true, RING_WARPS), room = tiles_shared_limit(t->arch),
            most = room > MOST_SHARED ? room : MOST_SHARED;
  while (batch > 4 && ring_bytes(d, p, batch, ring) + pair_bytes(p, batch) > most) {
    if (ring > batch)
      ring /= 2;
    else
      batch /= 2;
  }
  p->ring = ring, p->step = batch, p->ring_erases = d->class.erases;
  p->ring_width = d->class.decay == LINEAR_DECAY_CHANNEL ? p->k_dim : d->class.decay != LINEAR_DECAY_NONE;
  p->source = has_pairs(p) ? "entry/linear_ring_pairs.cu" : "entry/linear_ring.cu";
  p->token_numbers = row_size(d, p);
  const int bytes = ring_bytes(d, p, batch, ring);
  add_kernel(a, d, t, p, warps, batch, ring, bytes);
  if (has_pairs(p))
    linear_plan_add(p, "luattn_linear_pairs", LUATTN_ROLE_LINEAR_PAIRS, pair_threads(p), bytes + pair_bytes(p, batch));
  p->why = arena_printf(a,
                        "linear attention of class L%d behind a checkpoint: the state is read, and written where the "
                        "ring is full\n"
                        "rings of at most %d rows, at most %d tokens a step; a block has a value head\n%s",
                        (int)d->class.number, ring, batch, has_pairs(p) ? pairs_said : "");
}

const linear_family linear_recurrent = {
    .name = "token by token", .family = LUATTN_SIMT, .whole_hooks = true, .check = check, .plan = plan_walk};
const linear_family linear_ring = {.name = "behind a checkpoint",
                                   .family = LUATTN_SIMT,
                                   .by_ring = true,
                                   .whole_hooks = true,
                                   .check = check_ring,
                                   .plan = plan_ring};

/* ---- backward ---- */

enum { RUN = 32, MOST_BACK_WARPS = 16, HOOK_THREADS = 256 };

/* Numbers of ReverseWalk of reverse_recurrent.cuh. */
static int reverse_numbers(const derived_linear *d, const linear_plan *p, int batch, int warps) {
  const int parts = (batch * (row_size(d, p) + p->v_block + 2) + 3) / 4 * 4;
  return parts + 2 * warps * p->keys * ((p->k_dim + 31) / 32 * 32);
}

static void plan_reverse(arena *a, const luattn_spec *spec, const luattn_target *t, linear_plan *p) {
  (void)t;
  const derived_linear *d = spec->linear;
  const bool is_wide = p->k_dim > 128;
  const int v_lane = is_wide || is_double(p) ? 1 : 2, most = MOST_BACK_WARPS >> (is_wide + is_double(p)),
            padded = (p->k_dim + 31) / 32 * 32;
  int warps = (p->v_dim + 4 * v_lane - 1) / (4 * v_lane), batch = 8;
  if (warps > most) warps = most;
  p->v_block = 4 * v_lane * warps;
  p->normalizes = d->class.normalizes;
  p->keys = 2 + d->class.reads + d->class.erases + (d->class.decay != LINEAR_DECAY_NONE);
  p->run = RUN, p->numbers_kept = padded / 8 * (v_lane + d->class.normalizes);
  while (batch > 1 && reverse_numbers(d, p, batch, warps) * number_bytes(p) > 144 << 10) batch /= 2;
  p->constants =
      arena_printf(a,
                   "  using Number = %s;\n"
                   "  static constexpr int v_lane = %d, batch = %d, ring = 0, run = %d, threads = %d, blocks = 1;\n",
                   number_of(p), v_lane, batch, RUN, 32 * warps);
  p->source = "entry/linear_reverse.cu";
  const int bytes = reverse_numbers(d, p, batch, warps) * number_bytes(p);
  linear_plan_add(p, "luattn_linear_runs", LUATTN_ROLE_LINEAR_RUNS, 32 * warps, bytes);
  linear_plan_add(p, "luattn_linear_reverse", LUATTN_ROLE_LINEAR_REVERSE, 32 * warps, bytes);
  linear_plan_add(p, "luattn_linear_hooks", LUATTN_ROLE_LINEAR_HOOKS, HOOK_THREADS, 0);
  linear_plan_add(p, "luattn_linear_round", LUATTN_ROLE_LINEAR_ROUND, HOOK_THREADS, 0);
  p->why =
      arena_printf(a,
                   "backward of linear attention of class L%d token by token: states before each %d tokens are kept, "
                   "those of %d tokens made again from them\n"
                   "gradients of rows behind hooks go to memory, of each value head; a last kernel takes them through "
                   "hooks\n",
                   (int)d->class.number, RUN, RUN);
}

const linear_family linear_reverse = {.name = "backward token by token",
                                      .family = LUATTN_SIMT,
                                      .pass = LUATTN_BACKWARD,
                                      .whole_hooks = true,
                                      .check = check_any,
                                      .plan = plan_reverse};
