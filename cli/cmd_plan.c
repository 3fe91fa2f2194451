/* cmd_plan.c: luattn plan: shares a sequence out to GPUs, and predicts how fast they are. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/extents.h"
#include "luattn/parallel.h"

enum { TILE = LUATTN_PARALLEL_TILE, FINEST = 1024 /* chunks */, LISTED_RANKS = 16, LISTED_RANGES = 8 };

/* --ranks, --node. */
static luattn_status sizes(const cli_options *o, int *ranks, int *node, luattn_error *err) {
  if (o->ranks == 0)
    return luattn_fail(err, LUATTN_INVALID, "--ranks: is missing, or 0; give the number of GPUs, 1 to %d",
                       LUATTN_PARALLEL_MAX_RANKS);
  if (o->ranks < 1 || o->ranks > LUATTN_PARALLEL_MAX_RANKS)
    return luattn_fail(err, LUATTN_INVALID, "--ranks: is %ld, expected 1 to %d", o->ranks, LUATTN_PARALLEL_MAX_RANKS);
  if (o->node < 0 || o->node > LUATTN_PARALLEL_MAX_RANKS)
    return luattn_fail(err, LUATTN_INVALID, "--node: is %ld, expected 1 to %d", o->node, LUATTN_PARALLEL_MAX_RANKS);
  *ranks = (int)o->ranks, *node = (int)o->node;
  return LUATTN_OK;
}

/* Rows of the shortest chunks whose pairs are few enough to count. They divide the rows of a rank. */
static luattn_status finest_chunk(int len, int axes, int ranks, int *rows, luattn_error *err) {
  const long long unit = (long long)ranks * TILE, padded = (len + unit - 1) / unit * unit;
  if (len % unit != 0 || len == 0)
    return luattn_fail(
        err, LUATTN_INVALID, "--shape: Sq is %d%s, expected a multiple of %d ranks times %d rows; %s%lld", len,
        axes > 1 ? " places" : "", ranks, TILE, axes > 1 ? "give extents of " : "pad it to ", len == 0 ? unit : padded);
  const int most = 2 * ranks > FINEST ? 2 * ranks : FINEST, of_rank = (int)(len / unit);
  int tiles = 1;
  while (len / TILE / tiles > most && of_rank % (2 * tiles) == 0) tiles *= 2;
  while (len / TILE / tiles > LUATTN_PARALLEL_MAX_CHUNKS || of_rank % tiles != 0) tiles++;
  *rows = tiles * TILE;
  return LUATTN_OK;
}

static void print_candidates(const luattn_parallel_plan *plan) {
  printf("  %-12s %10s %9s %9s %10s %12s %11s\n", "partition", "chunk rows", "forward", "backward", "most/mean",
         "received MB", "memory MB");
  for (int i = 0; i < plan->num_candidates; i++) {
    const luattn_parallel_candidate *c = &plan->candidates[i];
    printf("%c %-12s %10d %9.3f %9.3f %10.3f %12.1f %11.1f\n", i == plan->chosen ? '*' : ' ',
           luattn_partition_name(c->partition), c->chunk_rows, c->forward, c->backward, c->imbalance, c->received / 1e6,
           c->memory / 1e6);
  }
}

/* Heads shared out before rows. */
static void print_levels(const luattn_parallel_plan *plan) {
  for (int i = 0; i < plan->num_levels; i++) {
    const luattn_parallel_levels *l = &plan->levels[i];
    const int left = plan->ranks / l->across;
    printf("heads over %d ranks%s", l->across, left > 1 ? "" : " alone");
    if (left > 1) printf(", rows over %d", left);
    printf(": forward %.3f, backward %.3f, %.1f MB exchanged\n", l->forward, l->backward, l->exchanged / 1e6);
  }
}

/* "0-2047, 14336-16383": the rows of a rank. */
static void print_rows(const luattn_parallel_plan *plan, int rank) {
  int listed = 0, left = 0;
  for (int c = 0, end; c < plan->chunks; c = end) {
    for (end = c + 1; end < plan->chunks && plan->rank_of[end] == plan->rank_of[c];) end++;
    if (plan->rank_of[c] != rank) continue;
    if (listed < LISTED_RANGES)
      printf("%s%d-%d", listed > 0 ? ", " : "", c * plan->chunk_rows, end * plan->chunk_rows - 1);
    else
      left++;
    listed++;
  }
  printf(left > 0 ? ", and %d more\n" : "\n", left);
}

static void show(const cli_problem *p, const luattn_parallel_plan *plan) {
  printf("%s, %d rows on %d ranks: %s, in chunks of %d; efficiencies are predictions\n", p->info.name, p->q_len,
         plan->ranks, luattn_partition_name(plan->candidates[plan->chosen].partition), plan->chunk_rows);
  if (p->axes > 1)
    printf(
        "rows are places of the grid in row-major order, and the tiles those of a mask over them, as ranks take it: "
        "written with q_idx // and %% extents, without a grid\n");
  print_candidates(plan);
  print_levels(plan);
  const int ranks = plan->ranks < LISTED_RANKS ? plan->ranks : LISTED_RANKS;
  for (int r = 0; r < ranks; r++) {
    printf("rank %d: ", r);
    print_rows(plan, r);
  }
  if (ranks < plan->ranks) printf("and %d more ranks\n", plan->ranks - ranks);
}

static luattn_status make(const cli_problem *p, const cli_problem *shape, int ranks, int node, luattn_error *err) {
  int rows = 0, elem_bytes = 2;
  char text[2][64];
  if (p->q_len != p->kv_len || (p->axes > 1 && memcmp(p->extent[0], p->extent[1], sizeof p->extent[0]) != 0))
    return luattn_fail(err, LUATTN_INVALID,
                       "--shape: Sq is %s and Skv is %s; ranks share out one sequence, so make them equal",
                       extents_text(p, 0, text[0]), extents_text(p, 1, text[1]));
  TRY(finest_chunk(p->q_len, p->axes, ranks, &rows, err));
  const int chunks = p->q_len / rows;
  float *tiles = malloc((size_t)chunks * (size_t)chunks * sizeof *tiles);
  if (tiles == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "plan: no memory for %dx%d chunks", chunks, chunks);
  cli_result r = {0};
  cli_binding bind;
  const luattn_args args = problem_args(p, &r, false, &bind);
  luattn_status status = luattn_mask_chunks(p->spec, &args, rows, tiles, err);
  if (shape->dtype == LUATTN_F32) elem_bytes = 4;
  if (shape->dtype == LUATTN_F64) elem_bytes = 8;
  luattn_parallel_plan *plan = NULL;
  if (status == LUATTN_OK)
    status = luattn_parallel_plan_new(&(luattn_parallel_problem){.struct_size = sizeof(luattn_parallel_problem),
                                                                 .ranks = ranks,
                                                                 .chunks = chunks,
                                                                 .chunk_rows = rows,
                                                                 .num_layers = 1,
                                                                 .layers = &(luattn_parallel_layers){tiles, 1},
                                                                 .heads = p->heads,
                                                                 .heads_kv = p->heads_kv,
                                                                 .head_dim = shape->dim,
                                                                 .head_dim_v = shape->dim_v,
                                                                 .elem_bytes = elem_bytes,
                                                                 .rates = {.node = node}},
                                      &plan, err);
  if (status == LUATTN_OK) show(p, plan);
  luattn_parallel_plan_free(plan);
  free(tiles);
  return status;
}

static luattn_status run(const cli_options *given, luattn_error *err) {
  cli_options o = *given;
  luattn_spec *spec;
  cli_problem p, shape = {.dtype = LUATTN_BF16};
  int ranks = 0, node = 0;
  char counted[192], extents[2][64];
  TRY(sizes(&o, &ranks, &node, err));
  TRY(dtype_option(&o, &shape.dtype, err));
  TRY(shape_option(&o, &shape, err));
  TRY(luattn_spec_load(o.spec, NULL, &spec, err));
  shape.spec = spec;
  luattn_spec_get_info(spec, &shape.info);
  luattn_status status = extents_check(&o, &shape, err);
  /* The counts are of lengths and heads alone, and q, k and v of a million rows need not exist. */
  snprintf(counted, sizeof counted, "%d,%d,%d,%s,%s,1", shape.batch, shape.heads, shape.heads_kv,
           extents_text(&shape, 0, extents[0]), extents_text(&shape, 1, extents[1]));
  o.shape = counted, o.head_dim = NULL, o.dtype = NULL, o.mask_only = true;
  if (status == LUATTN_OK && (status = problem_read(spec, &o, false, &p, err)) == LUATTN_OK) {
    status = make(&p, &shape, ranks, node, err);
    problem_free(&p);
  }
  luattn_spec_free(spec);
  return status;
}

int cmd_plan(const cli_options *o) {
  luattn_error err;
  return run(o, &err) == LUATTN_OK ? 0 : cli_fail(&err);
}
