/* linear_sm90.c: additive updates and the delta rule by TMA and wgmma, in chunks of 64 tokens (templates/linear/sm90). */
#include <stddef.h>

#include "abi/kernel_facts.h"
#include "abi/linear_params.h"
#include "common/fail.h"
#include "gen/analysis/linear/linear_adjoint.h"
#include "gen/plan/linear_family.h"

enum { MOST_STAGES = 4, MOST_K = 128, MOST_V = 256 };

static luattn_status lacks_dim(const char *name, const char *of, int x, int most, luattn_error *err) {
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "target: %s: is %d, and kernels of chunks take multiples of 8 up to %d channels of %s; leave "
                     "family 0, and another kernel walks token by token",
                     name, x, most, of);
}

static luattn_status check(const luattn_target *t, luattn_error *err) {
  if (t->decode)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: decode: is %d, and this kernel of linear attention takes chunks of tokens; leave it 0",
                       t->decode);
  if (t->arch != 90)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "target: arch: is sm_%d, and kernels of chunks are for sm_90a alone; leave family 0, and another "
        "kernel walks token by token",
        t->arch);
  if (t->dtype != LUATTN_BF16 && t->dtype != LUATTN_F16)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: dtype: is %s, and kernels of chunks are of bf16 and f16 alone; convert q, k and v to "
                       "one of these",
                       kernel_dtype_name(t->dtype));
  if (t->head_dim % 8 != 0 || t->head_dim > MOST_K) return lacks_dim("head_dim", "q and k", t->head_dim, MOST_K, err);
  if (t->head_dim_v % 8 != 0 || t->head_dim_v > MOST_V) return lacks_dim("head_dim_v", "v", t->head_dim_v, MOST_V, err);
  return LUATTN_OK;
}

static int threads_of(const linear_plan *p) { return 128 * (2 + p->v_block / 64); }

/* ---- by tiles of all chunks, which a kernel makes before ---- */

enum { TILE_THREADS = 256 };

static void add_chain(linear_plan *p, const char *name, luattn_role role, int leaves) {
  linear_plan_add(p, name, role, threads_of(p) - 128,
                  linear_chain_layout(p->k_dim, p->v_block, p->erases, leaves).bytes);
}
static void add_tiles(linear_plan *p) {
  linear_plan_add(p, "luattn_linear_tiles", LUATTN_ROLE_LINEAR_TILES, TILE_THREADS,
                  linear_maker_layout(p->k_dim).bytes);
}
#define ENDS                                                                                                          \
  "of segments whose state decays below 2^-40 of what it was over some of their last chunks, these chunks alone are " \
  "computed twice"

static const char *explain_tiles(arena *a, const linear_plan *p, int number) {
  return arena_printf(
      a,
      "linear attention of class L%d by chunks of %d tokens: %sa kernel makes pairs, %sand tiles of q and k with "
      "decays of channels of all chunks at once, which a chain loads; the state stays in registers\n"
      "the workspace holds %d bytes of these for each chunk of each value head\n"
      "segments: entries are cut at launch where value heads are fewer than multiprocessors%s; " ENDS "\n",
      number, LUATTN_CHUNK, p->erases ? "" : "where entries are cut, or states between tokens are wanted, ",
      p->erases ? "the inverse of what is erased, " : "", linear_tiles_layout(p->k_dim, p->erases, 0).bytes,
      p->erases ? "; a segment is a map of the state, and another kernel makes states of them in order" : "");
}

/* Whether a kernel makes all of a call whose entries are not cut; a second block of value channels would invert anew. */
static bool has_whole(const linear_plan *p) { return p->erases && p->v_dim <= p->v_block; }

/* Whether an image has the kernel whose blocks have two value heads. */
static bool has_two(const linear_plan *p, bool by_channel) { return !p->erases && !by_channel && p->v_dim <= 64; }

static const char *explain(arena *a, const linear_plan *p, int number, bool decays, bool by_channel) {
  const char *of_sums =
      by_channel ? "segments: entries are cut at launch where value heads are fewer than multiprocessors, into as many "
                   "of at least 1024 tokens as there are multiprocessors for; what a segment adds to the state needs "
                   "no other one"
                 : "segments: entries are cut at launch into as many of at least 1024 tokens as leave the fewest "
                   "chunks one after another; what a segment adds to the state needs no other one";
  const int blocks = (p->v_dim + p->v_block - 1) / p->v_block;
  return arena_printf(
      a,
      "linear attention of class L%d by chunks of %d tokens: the state stays in registers, q, k and v are read once\n"
      "%d value channels a block, %d block%s a value head: %s%s\n"
      "%d stages of q, k and v: as many as %d bytes of shared memory have room for, and no more than %d\n"
      "%s%s%s\n",
      number, LUATTN_CHUNK, p->v_block, blocks, blocks == 1 ? "" : "s, which read q and k anew",
      p->v_block == 64 ? "a warpgroup owns 64 of them" : "two warpgroups own 64 each",
      has_two(p, by_channel)
          ? "; where an even number of them read each head of q and k, a block has two, which share what it loads"
          : "",
      p->stages, LUATTN_SM90_SHARED_BYTES, MOST_STAGES,
      has_whole(p) ? "calls whose entries are not cut, and that keep nothing for backward, take luattn_linear_whole, "
                     "which inverts what is erased beside the products; others have a kernel before that inverts it "
                     "for all chunks\n"
                   : "",
      p->erases
          ? "segments: entries are cut at launch where value heads are fewer than multiprocessors, into as many of at "
            "least 1024 tokens as leave the fewest chunks one after another; a segment is a map of the state, "
            "which a kernel before finds, and another one makes states of them in order"
          : of_sums,
      decays ? "; " ENDS : "");
}

static void add_whole(linear_plan *p, bool by_channel) {
  for (p->stages = MOST_STAGES; p->stages > 2; p->stages--)
    if (linear_layout(p->k_dim, p->v_block, p->stages, p->erases, by_channel).bytes <= LUATTN_SM90_SHARED_BYTES) break;
  const int bytes = linear_layout(p->k_dim, p->v_block, p->stages, p->erases, by_channel).bytes;
  const bool makes_inverses = p->erases && !by_channel;
  if (makes_inverses)
    linear_plan_add(p, "luattn_linear_inverses", LUATTN_ROLE_LINEAR_INVERSES, LINEAR_INVERSE_THREADS,
                    linear_inverses_bytes(p->k_dim));
  const int behind = p->num_entries;
  if (!by_channel) linear_plan_add(p, "luattn_linear_states", LUATTN_ROLE_LINEAR_STATES, threads_of(p), bytes);
  if (makes_inverses) linear_plan_add(p, "luattn_linear_join", LUATTN_ROLE_LINEAR_JOIN, LINEAR_JOIN_THREADS, 0);
  linear_plan_add(p, "luattn_linear", LUATTN_ROLE_LINEAR, threads_of(p), bytes);
  if (has_two(p, by_channel))
    linear_plan_add(p, "luattn_linear_two", LUATTN_ROLE_LINEAR_TWO, LINEAR_TWO_THREADS,
                    linear_layout_two(p->k_dim, linear_two_stages(p->k_dim)).bytes);
  for (int i = behind; i < p->num_entries; i++) p->entry[i].early = makes_inverses;
  if (makes_inverses && has_whole(p))
    linear_plan_add(p, "luattn_linear_whole", LUATTN_ROLE_LINEAR_WHOLE, threads_of(p),
                    linear_layout_whole(p->k_dim, p->v_block).bytes);
}

/* Decays of channels and updates that erase. */
static void plan_erasing_tiles(linear_plan *p) {
  p->source = "entry/linear_tiles_sm90.cu";
  add_tiles(p);
  add_chain(p, "luattn_linear_states", LUATTN_ROLE_LINEAR_STATES, LINEAR_CHAIN_STATES);
  linear_plan_add(p, "luattn_linear_join", LUATTN_ROLE_LINEAR_JOIN, LINEAR_JOIN_THREADS, 0);
  add_chain(p, "luattn_linear", LUATTN_ROLE_LINEAR, LINEAR_CHAIN_OUT);
}

/* The same where q, k and v have two boxes of channels each. */
static bool takes_quarters(const linear_plan *p) { return p->k_dim > 64 && p->v_dim > 64 && p->v_dim <= 128; }
static void plan_quarters(linear_plan *p) {
  const int bytes = linear_quarters_layout().bytes;
  p->source = "entry/linear_quarters_sm90.cu";
  linear_plan_add(p, "luattn_linear_end", LUATTN_ROLE_LINEAR_END, LINEAR_QUARTER_END_THREADS, bytes);
  linear_plan_add(p, "luattn_linear", LUATTN_ROLE_LINEAR, LINEAR_QUARTER_THREADS, bytes);
  add_tiles(p);
  add_chain(p, "luattn_linear_states", LUATTN_ROLE_LINEAR_STATES, LINEAR_CHAIN_STATES);
  linear_plan_add(p, "luattn_linear_join", LUATTN_ROLE_LINEAR_JOIN, LINEAR_JOIN_THREADS, 0);
  add_chain(p, "luattn_linear_chain", LUATTN_ROLE_LINEAR_CHAIN, LINEAR_CHAIN_OUT);
  for (int i = 1; i < p->num_entries; i++) p->entry[i].early = true;
}
static const char *explain_quarters(arena *a, const linear_plan *p, int number) {
  return arena_printf(
      a,
      "linear attention of class L%d by quarters of chunks, of %d tokens: eight warps make pairs, the inverse of what "
      "is "
      "erased, and tiles of q and k with decays of channels in shared memory; two warpgroups take them, and the state "
      "stays in registers; q, k and v are read once\n"
      "segments: entries are cut at launch where value heads are fewer than multiprocessors; where a state decays "
      "below 2^-40 of what it was over up to 16 chunks before each segment, or 32 of long ones, segments begin with "
      "these, by what gates say%s, but for states that are updated in place; "
      "else kernels make tiles of all chunks, maps of segments, and o by a chain of these tiles, for which the "
      "workspace holds %d bytes for each chunk of each value head\n",
      number, LINEAR_QUARTER, p->dtype == LUATTN_F16 ? "" : " or by the norm of the map of these chunks",
      linear_tiles_layout(p->k_dim, p->erases, 0).bytes);
}

/* Those that add: one kernel is faster where entries are whole. */
static void plan_channels(linear_plan *p) {
  p->source = "entry/linear_channels_sm90.cu";
  add_tiles(p);
  add_chain(p, "luattn_linear_chain_states", LUATTN_ROLE_LINEAR_CHAIN_STATES, LINEAR_CHAIN_STATES);
  add_chain(p, "luattn_linear_chain", LUATTN_ROLE_LINEAR_CHAIN, LINEAR_CHAIN_OUT);
  add_whole(p, true);
}

static void plan(arena *a, const luattn_spec *spec, const luattn_target *t, linear_plan *p) {
  (void)t;
  const bool by_channel = spec->linear->class.decay == LINEAR_DECAY_CHANNEL;
  const int number = (int)spec->linear->class.number;
  p->cuts = true;
  p->v_block = p->v_dim > 64 ? 128 : 64;
  if (by_channel && p->erases && takes_quarters(p)) {
    plan_quarters(p);
    p->why = explain_quarters(a, p, number);
    return;
  }
  if (by_channel && p->erases) {
    plan_erasing_tiles(p);
    p->why = explain_tiles(a, p, number);
    return;
  }
  if (by_channel) {
    plan_channels(p);
  } else {
    p->source = "entry/linear_sm90.cu";
    add_whole(p, false);
  }
  const linear_decay decay = spec->linear->class.decay;
  const char *whole = explain(a, p, number, decay == LINEAR_DECAY_HEAD || decay == LINEAR_DECAY_TOKEN, by_channel),
             *tiles = by_channel ? explain_tiles(a, p, number) : "";
  p->why = whole != NULL && tiles != NULL ? arena_printf(a, "%s%s", whole, tiles) : NULL;
}

const linear_family linear_sm90 = {.name = "chunks by TMA and wgmma",
                                   .family = LUATTN_SM90,
                                   .takes = LINEAR_TAKES_READ | LINEAR_TAKES_CHANNEL_DECAY,
                                   .check = check,
                                   .plan = plan};
