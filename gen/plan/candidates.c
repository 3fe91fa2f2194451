#include "gen/plan/candidates.h"

#include "gen/plan/policy.h"

static bool is_feasible(const plan *started, const luattn_tiles *t) {
  plan p = *started;
  p.tile_m = t->tile_m, p.tile_n = t->tile_n, p.threads = t->threads, p.stages = t->stages;
  p.sm80_warps_n = t->warps_n, p.sm80_chunk_m = t->chunk_m;
  if (t->tile_m < 16 || t->tile_n < 16) return false;
  family_settle(&p);
  if (!plan_kernel(&p)->suits(&p)) return false;
  return tiles_check(&p, NULL) == LUATTN_OK && tiles_least_shared(&p) <= p.shared_limit && policy_fits_registers(&p);
}

typedef enum field { TILE_M, TILE_N, THREADS, STAGES, CHUNK_M } field;

/* Multiply, divide, then add. */
typedef struct step {
  field field;
  int times, over, more;
} step;

static luattn_tiles stepped(const luattn_tiles *from, const step *s, const plan *p) {
  luattn_tiles t = *from;
  int *const at[] = {
      [TILE_M] = &t.tile_m, [TILE_N] = &t.tile_n, [THREADS] = &t.threads, [STAGES] = &t.stages, [CHUNK_M] = &t.chunk_m};
  *at[s->field] = *at[s->field] * s->times / s->over + s->more;
  plan there = *p;
  there.tile_m = t.tile_m, there.tile_n = t.tile_n;
  family_settle(&there);
  if (plan_kernel(&there)->threads != NULL) t.threads = plan_kernel(&there)->threads(&there);
  return t;
}

/* Lists the nearest steps first, so that a tuning run that ends early has tried the best guesses. */
static const step forward_steps[] = {{STAGES, 1, 1, 1},  {STAGES, 1, 1, -1},  {TILE_N, 1, 1, 16}, {TILE_N, 1, 1, -16},
                                     {TILE_M, 1, 1, 64}, {TILE_M, 1, 1, -64}, {THREADS, 2, 1, 0}, {THREADS, 1, 2, 0},
                                     {TILE_N, 1, 1, 32}, {TILE_N, 1, 1, 48}};
static const step other_steps[] = {{STAGES, 1, 1, 1},  {STAGES, 1, 1, -1}, {TILE_M, 1, 2, 0},  {TILE_M, 2, 1, 0},
                                   {TILE_N, 1, 2, 0},  {TILE_N, 2, 1, 0},  {THREADS, 2, 1, 0}, {THREADS, 1, 2, 0},
                                   {CHUNK_M, 2, 1, 0}, {CHUNK_M, 1, 2, 0}};

typedef struct list {
  luattn_tiles *tiles;
  int count;
} list;

static void add(list *l, const plan *p, const luattn_tiles *t) {
  if (l->count == PLAN_MAX_CANDIDATES || !is_feasible(p, t)) return;
  for (int i = 0; i < l->count; i++)
    if (plan_same_tiles(&l->tiles[i], t)) return;
  l->tiles[l->count++] = *t;
}

/* All of the family's own that fit, as many as there is room for. */
static int add_all(list *l, const plan *p) {
  luattn_tiles own[PLAN_MAX_CANDIDATES];
  const int count = plan_kernel(p)->candidates(own);
  for (int i = 0; i < count; i++) add(l, p, &own[i]);
  return l->count;
}

int plan_candidates(const plan *started, luattn_tiles out[PLAN_MAX_CANDIDATES]) {
  plan p = *started;
  list l = {out, 0};
  luattn_tiles from;
  const bool sixteens = plan_kernel(started)->steps_of_16;
  const step *steps = sixteens ? forward_steps : other_steps;
  const int count = (int)(sixteens ? sizeof forward_steps : sizeof other_steps) / (int)sizeof *steps;
  p.lengths = LUATTN_LONG; /* one list for all lengths */
  for (int rank = 0; policy_tiles(&p, rank, &from); rank++) add(&l, &p, &from);
  p.softcap_poly = true;
  if (policy_tiles(&p, 0, &from)) add(&l, &p, &from);
  if (plan_kernel(&p)->candidates != NULL) return add_all(&l, &p);
  const int best = l.count < POLICY_TUNED_ROWS ? l.count : POLICY_TUNED_ROWS;
  for (int i = 0; i < best; i++)
    for (int j = 0; j < count; j++) {
      const luattn_tiles t = stepped(&out[i], &steps[j], &p);
      add(&l, &p, &t);
    }
  return l.count;
}
