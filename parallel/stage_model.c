#include "parallel/stage_model.h"

#include <stdlib.h>
#include <string.h>

/* Which keys a chunk of queries needs: chunks lowest .. highest, of which some are another rank's; their tiles. */
typedef struct chunk_needs {
  int lowest, highest; /* highest: -1: none */
  bool others;
  double tiles;
} chunk_needs;

/* Sums over the chunks of ranks. Arrays are [ranks][ranks]: rank, and rank whose keys they are. */
typedef struct exchange {
  const luattn_parallel_problem *problem;
  const luattn_parallel_rates *rates;
  int ranks, nodes, chunk_rows, own; /* own: chunks of a rank */
  bool serial;                       /* of the times that are asked for: no launch hides a copy */
  double *work;                      /* tiles */
  int *pieces;                       /* chunks of keys that the rank needs */
  int *node_pieces;                  /* [nodes][ranks]: that some rank of the node needs */
  int *order;                        /* [ranks] */
  int *stage_of;         /* [ranks]: of the rank at work, in which stage it takes the keys of each; own: 0 */
  unsigned char *needed; /* [chunks]: keys that a run of queries needs */
  unsigned char *held;   /* [chunks]: keys that lie in memory for those that come */
  chunk_needs *needs;    /* [chunks], of queries */
  const chunk_counts *counts;
  const int *rank_of;
} exchange;

enum { MOST_STAGES = 16 }; /* of 1024 ranks: 11 */

/* What a rank launches. A run is a longest row of its chunks of queries that lie after each other; by stages, one in
 * which all need keys of the same stages, so that rows of one part are not merged. */
typedef struct rank_calls {
  int calls[MOST_STAGES];     /* of a stage: one for each run and each range of keys that it needs */
  double merged[MOST_STAGES]; /* chunks of o that its merges read and write */
} rank_calls;

/* Gathered: launches of runs whose keys are the rank's own, or in part others'; tiles of the first ones; chunks of keys
 * that memory is taken for. */
typedef struct gathered_calls {
  int own, others;
  double own_tiles;
  int held, ranges; /* ranges: of them, that lie after each other at one rank */
} gathered_calls;

static int node_of(const exchange *x, int rank) { return rank / x->rates->node; }

static bool open_exchange(exchange *x) {
  const size_t n = (size_t)x->ranks;
  x->work = calloc(n * n, sizeof *x->work);
  x->pieces = calloc(n * n, sizeof *x->pieces);
  x->node_pieces = calloc((size_t)x->nodes * n, sizeof *x->node_pieces);
  x->order = calloc(n, sizeof *x->order);
  x->stage_of = calloc(n, sizeof *x->stage_of);
  x->needed = calloc((size_t)x->counts->chunks, sizeof *x->needed);
  x->held = calloc((size_t)x->counts->chunks, sizeof *x->held);
  x->needs = calloc((size_t)x->counts->chunks, sizeof *x->needs);
  for (int i = 0; x->needs != NULL && i < x->counts->chunks; ++i) x->needs[i].highest = -1;
  return x->work != NULL && x->pieces != NULL && x->node_pieces != NULL && x->order != NULL && x->stage_of != NULL &&
         x->needed != NULL && x->held != NULL && x->needs != NULL;
}

static void close_exchange(exchange *x) {
  free(x->work);
  free(x->pieces);
  free(x->node_pieces);
  free(x->order);
  free(x->stage_of);
  free(x->needed);
  free(x->held);
  free(x->needs);
}

/* j: greater than before. */
static void add_need(exchange *x, size_t i, size_t j, double tiles) {
  chunk_needs *of = &x->needs[i];
  if (of->highest < 0) of->lowest = (int)j;
  of->highest = (int)j;
  of->others |= x->rank_of[j] != x->rank_of[i];
  of->tiles += tiles;
}

/* needs [ranks + nodes]: whether chunk j of keys is needed there, filled anew for each j. */
static void sum_chunks(exchange *x, unsigned char *needs) {
  const chunk_counts *counts = x->counts;
  const int *rank_of = x->rank_of;
  const size_t n = (size_t)counts->chunks, ranks = (size_t)x->ranks;
  for (size_t j = 0; j < n; ++j) {
    const size_t owner = (size_t)rank_of[j];
    memset(needs, 0, ranks + (size_t)x->nodes);
    for (size_t i = 0; i < n; ++i) {
      const double tiles = counts->tiles[i * n + j];
      if (tiles <= 0) continue;
      const size_t rank = (size_t)rank_of[i];
      x->work[rank * ranks + owner] += tiles;
      needs[rank] = needs[ranks + (size_t)node_of(x, rank_of[i])] = 1;
      add_need(x, i, j, tiles);
    }
    for (size_t r = 0; r < ranks; ++r) x->pieces[r * ranks + owner] += needs[r];
    for (size_t d = 0; d < (size_t)x->nodes; ++d) x->node_pieces[d * ranks + owner] += needs[ranks + d];
  }
}

/* The ranks whose keys a rank needs: those of its node from the next one on, then those of the next nodes. */
static int order_sources(const exchange *x, int rank) {
  const int node = x->rates->node;
  int count = 0;
  for (int step = 0; step < x->nodes; ++step) {
    const int first = (node_of(x, rank) + step) % x->nodes * node,
              end = first + node < x->ranks ? first + node : x->ranks;
    const int begin = step == 0 ? rank : first;
    for (int s = 0; s < end - first; ++s) {
      const int source = begin + s < end ? begin + s : begin + s - (end - first);
      if (source != rank && x->pieces[rank * x->ranks + source] > 0) x->order[count++] = source;
    }
  }
  return count;
}

/* Seconds in which keys of a source, so many bytes a chunk, reach the rank. */
static double keys_seconds(const exchange *x, int rank, int source, double bytes) {
  const double own = x->pieces[rank * x->ranks + source] * bytes / x->rates->peer;
  const int node = node_of(x, rank);
  if (node == node_of(x, source)) return own;
  const double crossing = x->node_pieces[node * x->ranks + source] * bytes / x->rates->network / x->rates->node;
  return crossing > own ? crossing : own;
}

/* Seconds in which their gradients go back: added up in the node, then across. */
static double gradients_seconds(const exchange *x, int rank, int source, double bytes) {
  const double own = x->pieces[rank * x->ranks + source] * bytes / x->rates->peer;
  const int node = node_of(x, rank);
  if (node == node_of(x, source)) return own;
  return own + x->node_pieces[node * x->ranks + source] * bytes / x->rates->network / x->rates->node;
}

/* Fills stage_of: own keys, then those of 1, 1, 2, 4, .. ranks. Returns the number of stages after the first. */
static int set_stages(exchange *x, int rank, int sources) {
  int stages = 0;
  x->stage_of[rank] = 0;
  for (int at = 0, size = 1; at < sources; at += size, size *= stages > 1 ? 2 : 1) {
    ++stages;
    for (int i = at; i < sources && i < at + size; ++i) x->stage_of[x->order[i]] = stages;
  }
  return stages;
}

/* The stages whose keys a chunk of queries needs, a bit each; and these keys, besides those that are there. */
static unsigned add_needed(exchange *x, int chunk) {
  const size_t n = (size_t)x->counts->chunks;
  unsigned stages = 0;
  for (size_t j = 0; j < n; ++j)
    if (x->counts->tiles[(size_t)chunk * n + j] > 0) {
      x->needed[j] = 1;
      stages |= 1u << x->stage_of[x->rank_of[j]];
    }
  return stages;
}

static unsigned stages_of(const exchange *x, int chunk) {
  const size_t n = (size_t)x->counts->chunks;
  unsigned stages = 0;
  for (size_t j = 0; j < n; ++j)
    if (x->counts->tiles[(size_t)chunk * n + j] > 0) stages |= 1u << x->stage_of[x->rank_of[j]];
  return stages;
}

/* The launches of queries first .. end - 1, which need the keys that are marked. */
static void count_run(const exchange *x, int first, int end, rank_calls *out) {
  int last[MOST_STAGES], calls[MOST_STAGES] = {0};
  for (int s = 0; s < MOST_STAGES; ++s) last[s] = -2;
  for (int j = 0; j < x->counts->chunks; ++j) {
    if (!x->needed[j]) continue;
    const int s = x->stage_of[x->rank_of[j]];
    if (last[s] != j - 1) ++calls[s];
    last[s] = j;
  }
  bool any = false; /* parts of stages before */
  for (int s = 0; s < MOST_STAGES; ++s) {
    const int merged = calls[s] == 0 ? 0 : any ? calls[s] + 2 : calls[s] > 1 ? calls[s] + 1 : 0;
    out->calls[s] += calls[s];
    out->merged[s] += merged * (end - first);
    any |= calls[s] > 0;
  }
}

static rank_calls count_calls(exchange *x, int rank) {
  const int n = x->counts->chunks;
  rank_calls out = {0};
  for (int i = 0, end; i < n; i = end) {
    end = i + 1;
    if (x->rank_of[i] != rank) continue;
    memset(x->needed, 0, (size_t)n);
    const unsigned stages = add_needed(x, i);
    for (; end < n && x->rank_of[end] == rank && stages_of(x, end) == stages; ++end) add_needed(x, end);
    count_run(x, i, end, &out);
  }
  return out;
}

/* Of the queries first .. end - 1, in one launch: whether they need keys, and whether all of these lie in the rank's
 * own; those of others are marked as held, with all between them. */
static void hold_keys(exchange *x, int rank, int first, int end, gathered_calls *out) {
  chunk_needs all = {.lowest = x->counts->chunks, .highest = -1};
  for (int i = first; i < end; ++i) {
    if (x->needs[i].highest < 0) continue;
    all.lowest = x->needs[i].lowest < all.lowest ? x->needs[i].lowest : all.lowest;
    all.highest = x->needs[i].highest > all.highest ? x->needs[i].highest : all.highest;
    all.tiles += x->needs[i].tiles;
  }
  if (all.highest < 0) return;
  for (int j = all.lowest; j <= all.highest && !all.others; ++j) all.others = x->rank_of[j] != rank;
  if (!all.others)
    ++out->own, out->own_tiles += all.tiles;
  else {
    ++out->others;
    memset(x->held + all.lowest, 1, (size_t)(all.highest - all.lowest + 1));
  }
}

/* apart: runs are cut where they need keys of others. */
static gathered_calls count_gathered(exchange *x, int rank, bool apart) {
  const int n = x->counts->chunks;
  gathered_calls out = {0};
  memset(x->held, 0, (size_t)n);
  for (int i = 0, end; i < n; i = end) {
    end = i + 1;
    if (x->rank_of[i] != rank) continue;
    const bool others = x->needs[i].others;
    while (end < n && x->rank_of[end] == rank && (!apart || x->needs[end].others == others)) ++end;
    hold_keys(x, rank, i, end, &out);
  }
  for (int j = 0; j < n; ++j) {
    out.held += x->held[j];
    out.ranges += x->held[j] && (j == 0 || !x->held[j - 1] || x->rank_of[j] != x->rank_of[j - 1]);
  }
  return out;
}

/* As context_parallel's: cut where copies run beside launches, unless that makes many more. */
static gathered_calls gathered_of(exchange *x, int rank, bool serial) {
  enum { APART = 3 };
  const gathered_calls whole = count_gathered(x, rank, false);
  if (serial) return whole;
  const gathered_calls cut = count_gathered(x, rank, true);
  return cut.own + cut.others <= whole.own + whole.others + APART ? cut : count_gathered(x, rank, false);
}

typedef struct pass_costs {
  double tile, keys, gradients; /* seconds of a tile; bytes of a chunk */
  double merge;                 /* seconds to read or write o, or dq, of a chunk, where parts merge */
  double part;                  /* how much longer tiles take in parts of rows than in whole ones */
  double rounding;              /* seconds in which a chunk's gradients in float32 become those of the call */
} pass_costs;

static pass_costs costs_of(const exchange *x, bool backward) {
  const luattn_parallel_problem *p = x->problem;
  const double dims = p->head_dim + p->head_dim_v, square = LUATTN_PARALLEL_TILE * LUATTN_PARALLEL_TILE;
  const double rows = x->chunk_rows, part_bytes = stage_part_bytes(p);
  /* Products: of forward S and O; of backward S, dP, dV, dQ and dK. */
  const double flop = backward ? 6.0 * p->head_dim + 4.0 * p->head_dim_v : 2 * dims;
  return (pass_costs){
      .part = backward ? 1.04 : 1,
      .tile = flop * square * p->heads / (backward ? x->rates->backward : x->rates->forward),
      .keys = rows * p->heads_kv * dims * p->elem_bytes,
      .gradients = backward ? rows * p->heads_kv * dims * part_bytes : 0,
      .merge = rows * p->heads * (backward ? p->head_dim : p->head_dim_v) * part_bytes / x->rates->memory,
      .rounding = backward ? rows * (p->heads * p->head_dim + p->heads_kv * dims) * (part_bytes + p->elem_bytes) /
                                 x->rates->memory
                           : 0};
}

double stage_part_bytes(const luattn_parallel_problem *problem) { return problem->elem_bytes > 4 ? 8 : 4; }

static double greater_of(double a, double b) { return a > b ? a : b; }

/* The time of one rank in one pass, by both schedules; received: bytes of keys; in_flight: likewise, that are there at
 * once. */
typedef struct rank_time {
  double staged, gathered, received, in_flight[2];
} rank_time;

/* A rank's pass so far. now: of its launches; arrived: when the keys that were asked for are there; returned: when the
 * gradients that were sent have come. */
typedef struct rank_clock {
  double now, arrived, returned;
} rank_clock;

/* What a stage of other ranks' keys takes. */
typedef struct stage_load {
  double keys, gradients, work, bytes; /* seconds on the way, likewise, seconds of launches; bytes of keys */
} stage_load;

static stage_load load_of(const exchange *x, int rank, int stage, int *at, int sources, const pass_costs *c) {
  stage_load out = {.keys = x->rates->exchange, .gradients = c->gradients > 0 ? x->rates->exchange : 0};
  for (; *at < sources && x->stage_of[x->order[*at]] == stage; ++*at) {
    const int source = x->order[*at];
    out.keys += keys_seconds(x, rank, source, c->keys);
    out.gradients += gradients_seconds(x, rank, source, c->gradients);
    out.work += x->work[rank * x->ranks + source] * c->tile;
    out.bytes += x->pieces[rank * x->ranks + source] * c->keys;
  }
  return out;
}

/* Serial copies take turns with launches; others travel beside them, keys after keys and gradients after gradients. */
static void add_stage(const exchange *x, rank_clock *t, const stage_load *load) {
  if (x->serial) {
    t->now += load->keys + load->work + load->gradients;
    return;
  }
  t->arrived += load->keys;
  t->now = greater_of(t->now, t->arrived) + load->work;
  t->returned = greater_of(t->returned, t->now) + load->gradients;
}

/* Of the rank's own keys: how much of their launches comes before the other stages (context_parallel's _split_own). */
static double early_share(int calls, bool backward) { return !backward ? 1 : calls > 1 ? 1.0 / calls : 0; }

/* Of all stages' keys in one exchange, whose gradients come back in one. own: seconds of launches with own keys alone;
 * others: of the other ones. */
static double time_gathered(const exchange *x, const stage_load *all, double own, double others, double early) {
  if (x->serial) return all->keys + own + others + all->gradients;
  const double first = greater_of(early * own, all->keys) + others;
  return greater_of(first + (1 - early) * own, first + all->gradients);
}

/* What a rank does, in both passes alike. */
typedef struct rank_shape {
  int rank, sources, stages;
  rank_calls calls;
  gathered_calls runs[2]; /* where copies run beside launches; where they are serial */
} rank_shape;

/* Whether the caller asks for times of a pass with such copies. */
static bool may_be(const exchange *x, int pass, bool serial) {
  return x->rates->copies[pass] == LUATTN_COPIES_EITHER || (x->rates->copies[pass] == LUATTN_COPIES_SERIAL) == serial;
}

static rank_shape shape_of(exchange *x, int rank) {
  rank_shape out = {.rank = rank, .sources = order_sources(x, rank)};
  out.stages = set_stages(x, rank, out.sources);
  out.calls = count_calls(x, rank);
  for (int serial = 0; serial < 2; ++serial)
    if (may_be(x, 0, serial != 0) || may_be(x, 1, serial != 0)) out.runs[serial] = gathered_of(x, rank, serial != 0);
  return out;
}

/* Seconds of the host at least: the pass itself takes what some launches do. Of backward all takes twice as long: each
 * launch is three kernels, and gradients are added up. */
static double host_seconds(const exchange *x, double launches, bool backward) {
  enum { OF_PASS = 2 };
  return x->rates->launch * (OF_PASS + launches) * (backward ? 2 : 1);
}

static rank_time time_of_rank(const exchange *x, const rank_shape *r, const pass_costs *c, bool backward) {
  const rank_calls *calls = &r->calls;
  const gathered_calls *runs = &r->runs[x->serial];
  const double start = x->rates->stage, tiles = x->work[r->rank * x->ranks + r->rank] * c->tile;
  const double part = r->stages > 0 ? c->part : 1, early = early_share(calls->calls[0], backward),
               own = start * calls->calls[0] + part * tiles + calls->merged[0] * c->merge;
  double work = tiles, before = 0;
  rank_clock t = {.now = r->stages > 0 ? early * own : own};
  stage_load all = {0};
  rank_time out = {.in_flight = {0, runs->held * c->keys}};
  int launches = calls->calls[0];
  for (int stage = 1, at = 0; stage <= r->stages; ++stage) {
    stage_load load = load_of(x, r->rank, stage, &at, r->sources, c);
    all.keys += load.keys, all.gradients += load.gradients, work += load.work;
    launches += calls->calls[stage];
    load.work = part * load.work + start * calls->calls[stage] + calls->merged[stage] * c->merge;
    add_stage(x, &t, &load);
    out.received += load.bytes;
    out.in_flight[0] = greater_of(out.in_flight[0], load.bytes + before);
    before = load.bytes;
  }
  if (r->stages > 0) t.now += (1 - early) * own;
  const double once = r->stages > 1 ? (r->stages - 1) * x->rates->exchange : 0; /* of exchanges that are one */
  all.keys -= once, all.gradients -= backward ? once : 0;
  const double alone = runs->own_tiles * c->tile, rounding = x->ranks > 1 ? c->rounding * x->own : 0;
  out.staged = greater_of(greater_of(t.now, t.returned) + rounding, host_seconds(x, launches, backward));
  out.gathered = time_gathered(x, &all, alone + start * runs->own, work - alone + start * runs->others,
                               early_share(runs->own, backward)) +
                 rounding;
  out.gathered = greater_of(out.gathered, host_seconds(x, runs->own + runs->others + runs->ranges / 5.0, backward));
  return out;
}

/* What one way of moving rows, and one schedule, takes: of the slowest rank. */
typedef struct way_time {
  double seconds[2], in_flight; /* forward, backward; bytes of keys that are there at once */
} way_time;

enum { WAYS = 4 };

static int way_of(bool serial, bool gathered) { return 2 * serial + gathered; }

/* ways [WAYS]: by way_of. */
static void add_rank(exchange *x, const rank_shape *shape, const pass_costs costs[2], way_time *ways,
                     stage_prediction *out) {
  for (int serial = 0; serial < 2; ++serial) {
    x->serial = serial != 0;
    way_time *staged = &ways[way_of(x->serial, false)], *gathered = &ways[way_of(x->serial, true)];
    for (int pass = 0; pass < 2; ++pass) {
      if (!may_be(x, pass, x->serial)) continue;
      const rank_time one = time_of_rank(x, shape, &costs[pass], pass == 1);
      out->received = greater_of(out->received, one.received);
      staged->seconds[pass] = greater_of(staged->seconds[pass], one.staged);
      gathered->seconds[pass] = greater_of(gathered->seconds[pass], one.gathered);
      staged->in_flight = greater_of(staged->in_flight, one.in_flight[0]);
      gathered->in_flight = greater_of(gathered->in_flight, one.in_flight[1]);
    }
  }
}

/* The fastest way of a pass of those that the caller leaves; of equal ones the serial one, and the one by stages. */
static int fastest(const exchange *x, const way_time *ways, int pass) {
  int best = -1;
  for (int serial = 1; serial >= 0; --serial)
    for (int gathered = 0; gathered < 2; ++gathered) {
      const int schedule = gathered ? LUATTN_SCHEDULE_GATHERED : LUATTN_SCHEDULE_STAGES, way = way_of(serial, gathered);
      if (!may_be(x, pass, serial != 0)) continue;
      if (x->problem->schedule != LUATTN_SCHEDULE_AUTO && x->problem->schedule != schedule) continue;
      if (best < 0 || ways[way].seconds[pass] < ways[best].seconds[pass]) best = way;
    }
  return best;
}

static void predict(exchange *x, stage_prediction *out) {
  way_time ways[WAYS] = {{.seconds = {0}}};
  const pass_costs costs[2] = {costs_of(x, false), costs_of(x, true)};
  double total = 0;
  for (int r = 0; r < x->ranks; ++r) {
    const rank_shape shape = shape_of(x, r);
    double tiles = 0;
    for (int j = 0; j < x->ranks; ++j) tiles += x->work[r * x->ranks + j];
    total += tiles;
    out->most_tiles = greater_of(out->most_tiles, tiles);
    add_rank(x, &shape, costs, ways, out);
  }
  for (int pass = 0; pass < 2; ++pass) {
    const int way = fastest(x, ways, pass);
    out->alone[pass] = total * costs[pass].tile + x->rates->stage;
    out->gathered[pass] = way == way_of(false, true) || way == way_of(true, true);
    out->overlapped[pass] = way == way_of(false, false) || way == way_of(false, true);
    out->seconds[pass] = ways[way].seconds[pass];
    if (pass == 0) out->in_flight = ways[way].in_flight;
  }
}

bool stage_predict(const luattn_parallel_problem *problem, const luattn_parallel_rates *rates,
                   const chunk_counts *counts, int chunk_rows, const int *rank_of, stage_prediction *out) {
  exchange x = {.problem = problem,
                .rates = rates,
                .ranks = problem->ranks,
                .nodes = (problem->ranks + rates->node - 1) / rates->node,
                .chunk_rows = chunk_rows,
                .own = counts->chunks / problem->ranks,
                .counts = counts,
                .rank_of = rank_of};
  unsigned char *needs = malloc((size_t)x.ranks + (size_t)x.nodes);
  const bool ready = open_exchange(&x) && needs != NULL;
  *out = (stage_prediction){0};
  if (ready) {
    sum_chunks(&x, needs);
    predict(&x, out);
  }
  free(needs);
  close_exchange(&x);
  return ready;
}
