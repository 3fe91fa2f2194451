/* linear_backward.c: backward of linear attention by TMA and wgmma. Where K and V are above 64, of additive updates with decays of
 * tokens, and of updates that erase without decays of channels: a chain that keeps states of chunks, and luattn_linear_grads. Where
 * K alone is, two chains that keep states, and luattn_linear_group_rows. Else of additive updates a pass of the forward kernel
 * for each of dq, dk and dv, and a kernel over chunks for gradients of numbers of tokens; of others two chains, and a kernel over
 * chunks. Then one finishes rows and numbers (templates/linear/around). */
#include <stddef.h>

#include "abi/kernel_facts.h"
#include "abi/linear_params.h"
#include "common/fail.h"
#include "gen/analysis/linear/linear_adjoint.h"
#include "gen/plan/linear_family.h"

enum {
  MOST = 128,
  FINISH_THREADS = 256,
  NUMBER_THREADS = 352,
  ROW_THREADS = 384,
  COLUMN_THREADS = 512,
  GRAD_THREADS = 512,
  TILE_THREADS = 256,
  CHAIN_STAGES = 2,
  GROUP_CHAIN_STAGES = 3 /* of blocks of which a multiprocessor runs two */
};

static luattn_status check(const luattn_target *t, luattn_error *err) {
  if (t->arch != 90)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "target: arch: is sm_%d, and backward in chunks has kernels for sm_90a alone; leave family 0, and "
        "another kernel walks token by token",
        t->arch);
  if (t->dtype != LUATTN_BF16 && t->dtype != LUATTN_F16)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "target: dtype: is %s, and backward in chunks has kernels of bf16 and f16 alone; convert q, k and v "
        "to one of these",
        kernel_dtype_name(t->dtype));
  const struct {
    const char *name;
    int size;
  } dims[] = {{"head_dim", t->head_dim}, {"head_dim_v", t->head_dim_v}};
  for (int i = 0; i < 2; i++)
    if (dims[i].size % 8 != 0 || dims[i].size > MOST)
      return luattn_fail(err, LUATTN_UNSUPPORTED,
                         "target: %s: is %d, and backward in chunks takes multiples of 8 up to %d channels; leave "
                         "family 0, and another kernel walks token by token",
                         dims[i].name, dims[i].size, MOST);
  return LUATTN_OK;
}

static int block_of(int dim) { return dim > 64 ? 128 : 64; }

static void add_gradient(linear_plan *p, const char *states, const char *name, luattn_role role, int k_dim, int v_dim) {
  const int block = block_of(v_dim), threads = 128 * (2 + block / 64),
            bytes = linear_layout(k_dim, block, linear_grad_stages(k_dim, block), 0, 0).bytes;
  linear_plan_add(p, states, role - 1, threads, bytes);
  linear_plan_add(p, name, role, threads, bytes);
}

static void add_finish(linear_plan *p) {
  linear_plan_add(p, "luattn_linear_finish", LUATTN_ROLE_LINEAR_FINISH, FINISH_THREADS, 0);
  linear_plan_add(p, "luattn_linear_round", LUATTN_ROLE_LINEAR_ROUND, FINISH_THREADS, 0);
}

/* Whether one kernel has the chain of gradients and all that is made of them: tensors have two boxes of channels each. */
static bool has_one_kernel(const linear_plan *p) { return p->k_dim > 64 && p->v_dim > 64; }

static void add_grads(linear_plan *p) {
  linear_plan_add(p, "luattn_linear_grads", LUATTN_ROLE_LINEAR_GRADS, GRAD_THREADS, LINEAR_GRADS_BYTES);
}

/* Where decays are of tokens, whose gradients meet the states of both directions. */
static void plan_ways(arena *a, const luattn_spec *spec, linear_plan *p) {
  const int K = p->k_dim, block = block_of(p->v_dim), threads = 128 * (2 + block / 64),
            sums = linear_layout(K, block, linear_grad_stages(K, block), 0, 0).bytes;
  p->source = "entry/linear_adding_bwd_sm90.cu";
  p->cuts = true;
  p->v_block = block;
  linear_plan_add(p, "luattn_linear_chain_states", LUATTN_ROLE_LINEAR_CHAIN_STATES, threads, sums);
  linear_plan_add(p, "luattn_linear_chain", LUATTN_ROLE_LINEAR_CHAIN, threads,
                  linear_layout_states(K, block, CHAIN_STAGES).bytes);
  linear_plan_add(p, "luattn_linear_grad_chain_states", LUATTN_ROLE_LINEAR_GRAD_CHAIN_STATES, threads, sums);
  add_grads(p);
  add_finish(p);
  p->why = arena_printf(a,
                        "backward of linear attention of class L%d: a chain over chunks of %d tokens keeps states; one "
                        "that goes backwards makes dq, dk, dv and gradients of numbers of tokens of these and of "
                        "gradients of states, which stay in registers; a last kernel has those of mods, inputs and "
                        "scalars\n",
                        (int)spec->linear->class.number, LUATTN_CHUNK);
}

/* Where tensors of q and k have two boxes of channels, and v has one: all value heads of a head of q and k are added up by
 * one block, whose kernel has no places for gradients of factors of rows. */
static bool adds_heads(const luattn_spec *spec, const linear_plan *p) {
  return p->k_dim > 64 && p->v_dim <= 64 && !spec->linear->hook[LINEAR_QUERY].given &&
         !spec->linear->hook[LINEAR_KEY].given;
}

static void plan_groups(arena *a, const luattn_spec *spec, linear_plan *p) {
  const int K = p->k_dim, threads = 128 * 3, sums = linear_layout(K, 64, linear_grad_stages(K, 64), 0, 0).bytes,
            kept = linear_layout_states(K, 64, GROUP_CHAIN_STAGES).bytes;
  p->source = "entry/linear_group_bwd_sm90.cu";
  p->constants = "  static constexpr bool adds_skip = true;\n";
  p->cuts = true;
  p->v_block = 64;
  linear_plan_add(p, "luattn_linear_chain_states", LUATTN_ROLE_LINEAR_CHAIN_STATES, threads, sums);
  linear_plan_add(p, "luattn_linear_chain", LUATTN_ROLE_LINEAR_CHAIN, 128 * 2, kept);
  linear_plan_add(p, "luattn_linear_grad_chain_states", LUATTN_ROLE_LINEAR_GRAD_CHAIN_STATES, threads, sums);
  linear_plan_add(p, "luattn_linear_grad_chain", LUATTN_ROLE_LINEAR_GRAD_CHAIN, 128 * 2, kept);
  linear_plan_add(p, "luattn_linear_group_rows", LUATTN_ROLE_LINEAR_GROUP_ROWS, GRAD_THREADS, LINEAR_GROUP_BYTES);
  add_finish(p);
  p->why =
      arena_printf(a,
                   "backward of linear attention of class L%d: two chains over chunks of %d tokens keep states and "
                   "their gradients; a kernel over all chunks at once adds up dq and dk of all value heads that "
                   "read a head of q and k, and makes dv and gradients of numbers of tokens; a last kernel has "
                   "those of mods, inputs and scalars\n",
                   (int)spec->linear->class.number, LUATTN_CHUNK);
}

static void plan_additive(arena *a, const luattn_spec *spec, const luattn_target *t, linear_plan *p) {
  (void)t;
  const int K = p->k_dim, V = p->v_dim;
  if (spec->linear->class.decay == LINEAR_DECAY_TOKEN && has_one_kernel(p)) {
    plan_ways(a, spec, p);
    return;
  }
  if (adds_heads(spec, p)) {
    plan_groups(a, spec, p);
    return;
  }
  p->source = "entry/linear_bwd_sm90.cu";
  p->cuts = true;
  p->v_block = block_of(V);
  add_gradient(p, "luattn_linear_grad_q_states", "luattn_linear_grad_q", LUATTN_ROLE_LINEAR_GRAD_Q, V, K);
  add_gradient(p, "luattn_linear_grad_k_states", "luattn_linear_grad_k", LUATTN_ROLE_LINEAR_GRAD_K, V, K);
  add_gradient(p, "luattn_linear_grad_v_states", "luattn_linear_grad_v", LUATTN_ROLE_LINEAR_GRAD_V, K, V);
  linear_plan_add(p, "luattn_linear_numbers", LUATTN_ROLE_LINEAR_WAYS, NUMBER_THREADS,
                  linear_numbers_layout(K, V).bytes);
  add_finish(p);
  p->why = arena_printf(a,
                        "backward of linear attention of class L%d: a pass over chunks of %d tokens for each of dq, dk "
                        "and dv, whose states stay in registers\n"
                        "gradients of decays and of what is written are sums over ways, by a kernel that reads the "
                        "state of each chunk; a last kernel has those of mods, inputs and scalars\n",
                        (int)spec->linear->class.number, LUATTN_CHUNK);
}

const linear_family linear_sm90_backward = {.name = "backward of additive updates by TMA and wgmma",
                                            .family = LUATTN_SM90,
                                            .pass = LUATTN_BACKWARD,
                                            .check = check,
                                            .plan = plan_additive};

static void add_chains(linear_plan *p) {
  const int threads = 128 * (2 + block_of(p->v_dim) / 64),
            bytes = linear_layout_kept(p->k_dim, block_of(p->v_dim), CHAIN_STAGES).bytes;
  p->v_block = block_of(p->v_dim);
  p->cuts = true;
  linear_plan_add(p, "luattn_linear_chain_states", LUATTN_ROLE_LINEAR_CHAIN_STATES, threads, bytes);
  linear_plan_add(p, "luattn_linear_chain_join", LUATTN_ROLE_LINEAR_CHAIN_JOIN, LINEAR_JOIN_THREADS, 0);
  linear_plan_add(p, "luattn_linear_chain", LUATTN_ROLE_LINEAR_CHAIN, threads, bytes);
  linear_plan_add(p, "luattn_linear_grad_chain_states", LUATTN_ROLE_LINEAR_GRAD_CHAIN_STATES, threads, bytes);
  linear_plan_add(p, "luattn_linear_grad_chain_join", LUATTN_ROLE_LINEAR_GRAD_CHAIN_JOIN, LINEAR_JOIN_THREADS, 0);
  if (has_one_kernel(p)) {
    p->source = "entry/linear_grads_bwd_sm90.cu";
    add_grads(p);
    return;
  }
  p->source = "entry/linear_erasing_bwd_sm90.cu";
  linear_plan_add(p, "luattn_linear_grad_chain", LUATTN_ROLE_LINEAR_GRAD_CHAIN, threads, bytes);
  linear_plan_add(p, "luattn_linear_rows", LUATTN_ROLE_LINEAR_ROWS, ROW_THREADS,
                  linear_rows_layout(p->k_dim, p->v_dim).bytes);
}

static void plan_erasing(arena *a, const luattn_spec *spec, const luattn_target *t, linear_plan *p) {
  (void)t;
  linear_plan_add(p, "luattn_linear_inverses", LUATTN_ROLE_LINEAR_INVERSES, LINEAR_INVERSE_THREADS,
                  linear_inverses_bytes(p->k_dim));
  add_chains(p);
  add_finish(p);
  p->why = arena_printf(
      a,
      "backward of linear attention of class L%d: a kernel over all chunks of %d tokens at once inverts "
      "what they erase; with that, %s of these; a last kernel has those of mods, inputs and scalars\n",
      (int)spec->linear->class.number, LUATTN_CHUNK,
      has_one_kernel(p) ? "a chain keeps states, and one that goes backwards makes dq, dk, dv and gradients "
                          "of numbers of tokens"
                        : "two chains keep states and their gradients, and a kernel over all chunks makes "
                          "dq, dk, dv and gradients of numbers of tokens");
}

const linear_family linear_sm90_erasing_backward = {.name = "backward of the delta rule by TMA and wgmma",
                                                    .family = LUATTN_SM90,
                                                    .pass = LUATTN_BACKWARD,
                                                    .takes = LINEAR_TAKES_READ,
                                                    .check = check,
                                                    .plan = plan_erasing};

static void add_tile_chain(linear_plan *p, const char *name, luattn_role role, int leaves) {
  const int block = block_of(p->v_dim);
  linear_plan_add(p, name, role, 128 * (1 + block / 64), linear_chain_layout(p->k_dim, block, p->erases, leaves).bytes);
}
static void add_tile_chains(linear_plan *p) {
  add_tile_chain(p, "luattn_linear_chain_states", LUATTN_ROLE_LINEAR_CHAIN_STATES, LINEAR_CHAIN_STATES);
  if (p->erases) linear_plan_add(p, "luattn_linear_chain_join", LUATTN_ROLE_LINEAR_CHAIN_JOIN, LINEAR_JOIN_THREADS, 0);
  add_tile_chain(p, "luattn_linear_chain", LUATTN_ROLE_LINEAR_CHAIN, LINEAR_CHAIN_STATES);
  add_tile_chain(p, "luattn_linear_grad_chain_states", LUATTN_ROLE_LINEAR_GRAD_CHAIN_STATES, LINEAR_CHAIN_BACK);
  if (p->erases)
    linear_plan_add(p, "luattn_linear_grad_chain_join", LUATTN_ROLE_LINEAR_GRAD_CHAIN_JOIN, LINEAR_JOIN_THREADS, 0);
  add_tile_chain(p, "luattn_linear_grad_chain", LUATTN_ROLE_LINEAR_GRAD_CHAIN, LINEAR_CHAIN_BACK);
}

static void plan_channels(arena *a, const luattn_spec *spec, const luattn_target *t, linear_plan *p) {
  (void)t;
  p->source = "entry/linear_channels_bwd_sm90.cu";
  p->v_block = block_of(p->v_dim);
  linear_plan_add(p, "luattn_linear_tiles", LUATTN_ROLE_LINEAR_TILES, TILE_THREADS,
                  linear_maker_layout(p->k_dim).bytes);
  p->cuts = true;
  add_tile_chains(p);
  linear_plan_add(p, "luattn_linear_columns", LUATTN_ROLE_LINEAR_ROWS, COLUMN_THREADS,
                  linear_columns_layout(p->k_dim, p->v_dim, p->erases).bytes);
  add_finish(p);
  p->why = arena_printf(
      a,
      "backward of linear attention of class L%d: a kernel makes tiles with decays of channels of all chunks of %d "
      "tokens at once, of which two chains keep states and their gradients%s; of these, a kernel over all chunks at "
      "once "
      "makes dq, dk%s and gradients of decays of channels%s; a last kernel has those of mods, inputs and scalars\n"
      "segments: entries are cut at launch, as those of forward are\n",
      (int)spec->linear->class.number, LUATTN_CHUNK, p->erases ? "" : ", and make dv", p->erases ? ", dv" : "",
      p->erases || spec->linear->hook[LINEAR_WRITE].given ? " and of numbers of tokens" : "");
}

const linear_family linear_sm90_channels_backward = {.name = "backward of decays of channels by TMA and wgmma",
                                                     .family = LUATTN_SM90,
                                                     .pass = LUATTN_BACKWARD,
                                                     .takes = LINEAR_TAKES_CHANNEL_DECAY | LINEAR_TAKES_READ,
                                                     .check = check,
                                                     .plan = plan_channels};
