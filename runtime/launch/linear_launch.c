/* linear_launch.c: launches a kernel of linear attention, after that of its segments' states. */
#include "common/host.h"
#include "common/struct_size.h"
#include "luattn/linear.h"
#include "runtime/call/linear_args.h"
#include "runtime/call/tensor_rule.h"
#include "runtime/device/launch_entry.h"
#include "runtime/launch/tma_descriptors.h"

static luattn_status take(const luattn_kernel *kernel, const luattn_linear_args *given, luattn_linear_args *used,
                          luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_linear_args, workspace);
  return struct_take(&rule, args_place(kernel), given, used, err);
}

/* The blocks of a role's entry, 0: it is not launched; and the pass whose tensors it takes. */
typedef struct role_blocks {
  int64_t (*blocks)(const linear_call *l, const manifest_entry *e, const linear_pass *pass);
  int pass;
} role_blocks;

static int64_t all_segments(const linear_call *l, const manifest_entry *e, const linear_pass *pass) {
  (void)l, (void)e;
  return pass->wanted ? pass->blocks * pass->segments : 0;
}

static int64_t half_of_segments(const linear_call *l, const manifest_entry *e, const linear_pass *pass) {
  return all_segments(l, e, pass) / 2;
}

static int64_t but_last_segments(const linear_call *l, const manifest_entry *e, const linear_pass *pass) {
  (void)l, (void)e;
  return pass->wanted ? (pass->blocks + pass->map_blocks) * (pass->segments - 1) : 0;
}

static int64_t joins(const linear_call *l, const manifest_entry *e, const linear_pass *pass) {
  (void)e;
  const int64_t parts = (l->c.info->head_dim_v + LINEAR_JOIN_VALUES - 1) / LINEAR_JOIN_VALUES;
  return pass->wanted && pass->segments > 1 ? (int64_t)l->p.entries * l->p.heads_v * parts : 0;
}

static int64_t of_rows(const linear_call *l, const manifest_entry *e, const linear_pass *pass) {
  (void)pass;
  const int64_t rows = (int64_t)l->p.tokens * (l->c.info->packed ? 1 : l->p.entries);
  return 3 * ((rows * l->p.heads_v + e->tile_m - 1) / e->tile_m);
}

static int64_t of_chunks(const linear_call *l, const manifest_entry *e, const linear_pass *pass) {
  (void)pass;
  const int64_t all = (int64_t)linear_chunk_slots(l->p.entries, l->p.tokens, l->c.info->packed != 0) * l->p.heads_v;
  if (e->role == LUATTN_ROLE_LINEAR_INVERSES) return all;
  if (e->role == LUATTN_ROLE_LINEAR_WAYS && l->p.rows.blocks[3] == 0) return 0;
  const int64_t most = (int64_t)l->c.multiprocessors * (e->role == LUATTN_ROLE_LINEAR_TILES ? LINEAR_MAKER_BLOCKS : 1);
  return all < most ? all : most;
}

static int64_t of_finish(const linear_call *l, const manifest_entry *e, const linear_pass *pass) {
  (void)e, (void)pass;
  const unsigned *blocks = l->p.rows.blocks;
  return (int64_t)blocks[0] + blocks[1] + blocks[2] + blocks[3];
}

/* The elements of the largest sum. */
static int64_t of_sums(const linear_call *l, const manifest_entry *e, const linear_pass *pass) {
  (void)pass;
  const LuattnInputs *in = &l->p.inputs;
  int64_t most = in->scalar_exact != NULL ? in->num_scalars : 0;
  for (uint32_t i = 0; i < l->c.info->num_inputs; i++)
    if (in->input[i].exact != NULL && in->input[i].count > most) most = in->input[i].count;
  return (most + e->tile_m - 1) / e->tile_m;
}

static int64_t of_value_heads(const linear_call *l, const manifest_entry *e, const linear_pass *pass) {
  (void)e, (void)pass;
  return (int64_t)l->p.entries * l->p.heads_v;
}

static int64_t of_cuts(const linear_call *l, const manifest_entry *e, const linear_pass *pass) {
  return of_value_heads(l, e, pass) * (pass->segments - 1);
}

static int64_t of_hooks(const linear_call *l, const manifest_entry *e, const linear_pass *pass) {
  (void)e, (void)pass;
  const int64_t entries = l->c.info->packed && l->p.entries == 0 ? 1 : l->p.entries; /* rows of nobody become 0 */
  return entries * l->p.heads * l->p.reverse.parts;
}

static const role_blocks blocks_of[LUATTN_ROLE_COUNT] = {
    [LUATTN_ROLE_LINEAR_STATES] = {but_last_segments, 0},
    [LUATTN_ROLE_LINEAR_JOIN] = {joins, 0},
    [LUATTN_ROLE_LINEAR] = {all_segments, 0},
    [LUATTN_ROLE_LINEAR_TWO] = {half_of_segments, 0},
    [LUATTN_ROLE_LINEAR_PREPARE] = {of_rows, 0},
    [LUATTN_ROLE_LINEAR_GRAD_Q_STATES] = {but_last_segments, 1},
    [LUATTN_ROLE_LINEAR_GRAD_Q] = {all_segments, 1},
    [LUATTN_ROLE_LINEAR_GRAD_K_STATES] = {but_last_segments, 2},
    [LUATTN_ROLE_LINEAR_GRAD_K] = {all_segments, 2},
    [LUATTN_ROLE_LINEAR_GRAD_V_STATES] = {but_last_segments, 3},
    [LUATTN_ROLE_LINEAR_GRAD_V] = {all_segments, 3},
    [LUATTN_ROLE_LINEAR_CHAIN_STATES] = {but_last_segments, 1},
    [LUATTN_ROLE_LINEAR_CHAIN_JOIN] = {joins, 1},
    [LUATTN_ROLE_LINEAR_CHAIN] = {all_segments, 1},
    [LUATTN_ROLE_LINEAR_GRAD_CHAIN_STATES] = {but_last_segments, 2},
    [LUATTN_ROLE_LINEAR_GRAD_CHAIN_JOIN] = {joins, 2},
    [LUATTN_ROLE_LINEAR_GRAD_CHAIN] = {all_segments, 2},
    [LUATTN_ROLE_LINEAR_GRADS] = {all_segments, 2},
    [LUATTN_ROLE_LINEAR_ROWS] = {of_chunks, 0},
    [LUATTN_ROLE_LINEAR_GROUP_ROWS] = {of_chunks, 0},
    [LUATTN_ROLE_LINEAR_WAYS] = {of_chunks, 0},
    [LUATTN_ROLE_LINEAR_TILES] = {of_chunks, 0},
    [LUATTN_ROLE_LINEAR_INVERSES] = {of_chunks, 0},
    [LUATTN_ROLE_LINEAR_FINISH] = {of_finish, 0},
    [LUATTN_ROLE_LINEAR_RUNS] = {of_value_heads, 0},
    [LUATTN_ROLE_LINEAR_REVERSE] = {of_value_heads, 0},
    [LUATTN_ROLE_LINEAR_HOOKS] = {of_hooks, 0},
    [LUATTN_ROLE_LINEAR_ROUND] = {of_sums, 0},
    [LUATTN_ROLE_LINEAR_END] = {of_cuts, 0},
    [LUATTN_ROLE_LINEAR_WHOLE] = {all_segments, 0},
};

/* The pass whose tensors a role's entry takes: of either direction, the inverses those of the chain that goes forwards. */
static int pass_of(const image_manifest *m, uint32_t role) {
  if (m->pass == LUATTN_FORWARD) return 0;
  return role == LUATTN_ROLE_LINEAR_INVERSES ? 1 : blocks_of[role].pass;
}

/* Gradients of inputs and scalars, which kernels add to. */
static luattn_status clear_sums(const luattn_kernel *k, const linear_call *l, cu_stream stream) {
  const LuattnInputs *in = &l->p.inputs;
  if (k->info.pass != LUATTN_BACKWARD) return LUATTN_OK;
  TRY(launch_zero(k, l->exact, l->exact_bytes, "exact sums", stream, l->c.err));
  for (uint32_t i = 0; i < k->info.num_inputs; i++)
    if (!linear_is_stored(l, i))
      TRY(launch_zero(k, in->input[i].grad, (size_t)in->input[i].count * args_real_size(&k->info),
                      k->info.input[i].name, stream, l->c.err));
  return launch_zero(k, in->scalar_grad, k->info.num_scalars * args_real_size(&k->info), "scalar_grads", stream,
                     l->c.err);
}

/* Whether what a role's entry makes is there: forward has kept it. */
static bool is_kept(const linear_call *l, uint32_t role) {
  return l->c.info->pass == LUATTN_BACKWARD && l->args->kept != NULL && l->kept_size > 0 &&
         (role == LUATTN_ROLE_LINEAR_INVERSES || role == LUATTN_ROLE_LINEAR_CHAIN_STATES ||
          role == LUATTN_ROLE_LINEAR_CHAIN_JOIN || role == LUATTN_ROLE_LINEAR_CHAIN);
}

/* q, k, v and the gradient of o, of the passes for dq and dk of additive updates. */
static LuattnTensorMaps maps_of_ways(const LuattnTensorMaps *maps) {
  return (LuattnTensorMaps){.q = maps[2].v, .k = maps[1].v, .v = maps[1].k, .dout = maps[1].q};
}

static luattn_status start(const luattn_kernel *k, linear_call *l, cu_stream stream) {
  const image_manifest *m = &k->info;
  if (l->walk.threads > 0)
    return launch_threads(k, l->walk.entry, l->walk.threads, l->walk.shared_bytes, &l->p, l->walk.grid, stream,
                          l->c.err);
  const bool by_tma = m->family == LUATTN_SM90;
  LuattnTensorMaps maps[LINEAR_PASSES], of_ways;
  LuattnLinearRowMaps of_rows_maps;
  for (int i = 0; by_tma && i < LINEAR_PASSES; i++)
    if (l->pass[i].wanted) TRY(descriptors_fill_linear(k->driver, k->descriptors, l, i, &maps[i]));
  if (linear_has_chains(m)) TRY(descriptors_fill_linear_rows(k->driver, k->descriptors, l, &of_rows_maps));
  TRY(clear_sums(k, l, stream));
  for (uint32_t i = 0; i < m->num_entries; ++i) {
    const uint32_t role = m->entry[i].role;
    const int pass = pass_of(m, role);
    LuattnLinearParams p = pass > 0 || m->pass == LUATTN_FORWARD ? linear_pass_params(l, pass) : l->p;
    const bool runs = !is_kept(l, role) && !linear_passes_over(l, role);
    const int64_t blocks = !runs ? 0 : blocks_of[role].blocks(l, &m->entry[i], &l->pass[pass]);
    if (blocks > INT32_MAX)
      return args_fail(&l->c, "q, v: are %lld blocks, more than a launch has; split the batch", (long long)blocks);
    const unsigned grid[] = {(unsigned)blocks, role == LUATTN_ROLE_LINEAR_ROUND ? m->num_inputs + 1 : 1, 1};
    if (role == LUATTN_ROLE_LINEAR_WAYS && blocks > 0) of_ways = maps_of_ways(maps);
    const bool makes_rows =
        role == LUATTN_ROLE_LINEAR_ROWS || role == LUATTN_ROLE_LINEAR_GROUP_ROWS || role == LUATTN_ROLE_LINEAR_GRADS;
    void *const given = makes_rows                        ? (void *)&of_rows_maps
                        : role == LUATTN_ROLE_LINEAR_WAYS ? (void *)&of_ways
                        : by_tma                          ? (void *)&maps[pass]
                                                          : NULL;
    TRY(launch_entry(k, i, &p, given, grid, stream, l->c.err));
  }
  return LUATTN_OK;
}

luattn_status luattn_linear_launch(const luattn_kernel *kernel, const luattn_linear_args *args, void *stream,
                                   luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_linear_args used;
  linear_call l;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  TRY(take(kernel, args, &used, err));
  TRY(linear_args_fill(kernel, &used, false, &l, err));
  TRY(linear_args_check(kernel, &l, stream));
  TRY(driver_push(kernel->driver, kernel->context, err));
  const luattn_status status = start(kernel, &l, stream);
  driver_pop(kernel->driver);
  return status;
}

static luattn_status find_sizes(const luattn_kernel *kernel, const luattn_linear_args *args, linear_call *l,
                                luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_linear_args used;
  TRY(take(kernel, args, &used, err));
  return linear_args_fill(kernel, &used, true, l, err);
}

luattn_status luattn_linear_launch_size(const luattn_kernel *kernel, const luattn_linear_args *args, size_t *size,
                                        luattn_error *err) {
  linear_call l;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  NEED(size);
  TRY(find_sizes(kernel, args, &l, err));
  *size = l.workspace;
  return LUATTN_OK;
}

luattn_status luattn_linear_launch_kept_size(const luattn_kernel *kernel, const luattn_linear_args *args, size_t *size,
                                             luattn_error *err) {
  linear_call l;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  NEED(size);
  TRY(find_sizes(kernel, args, &l, err));
  *size = l.c.info->pass == LUATTN_FORWARD ? l.kept_size : 0;
  return LUATTN_OK;
}
