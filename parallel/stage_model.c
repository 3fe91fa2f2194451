#include "parallel/stage_model.h"

#include <stdlib.h>
#include <string.h>

/* Sums over the chunks of ranks. Arrays are [ranks][ranks]: rank, and rank whose keys they are. */
typedef struct exchange {
  const luattn_parallel_problem *problem;
  const luattn_parallel_rates *rates;
  int ranks, nodes, chunk_rows, own; /* own: chunks of a rank */
  double *work;                      /* tiles */
  int *pieces;                       /* chunks of keys that the rank needs */
  int *node_pieces;                  /* [nodes][ranks]: that some rank of the node needs */
  int *order;                        /* [ranks] */
  int *stage_of;         /* [ranks]: of the rank at work, in which stage it takes the keys of each; own: 0 */
  unsigned char *needed; /* [chunks]: keys that a run of queries needs */
  const chunk_counts *counts;
  const int *rank_of;
} exchange;

enum { MOST_STAGES = 16 }; /* of 1024 ranks: 11 */

/* What a rank launches. A run is a longest row of its chunks of queries that lie after each other; by stages, one in
 * which all need keys of the same stages, so that rows of one part are not merged. */
typedef struct rank_calls {
  int calls[MOST_STAGES];     /* of a stage: one for each run and each range of keys that it needs */
  double merged[MOST_STAGES]; /* chunks of o that its merges read and write */
  int runs, hull; /* gathered: runs that need keys; chunks of keys from the first that is needed to the last */
} rank_calls;

static int node_of(const exchange *x, int rank) { return rank / x->rates->node; }

static bool open_exchange(exchange *x) {
  const size_t n = (size_t)x->ranks;
  x->work = calloc(n * n, sizeof *x->work);
  x->pieces = calloc(n * n, sizeof *x->pieces);
  x->node_pieces = calloc((size_t)x->nodes * n, sizeof *x->node_pieces);
  x->order = calloc(n, sizeof *x->order);
  x->stage_of = calloc(n, sizeof *x->stage_of);
  x->needed = calloc((size_t)x->counts->chunks, sizeof *x->needed);
  return x->work != NULL && x->pieces != NULL && x->node_pieces != NULL && x->order != NULL && x->stage_of != NULL &&
         x->needed != NULL;
}

static void close_exchange(exchange *x) {
  free(x->work);
  free(x->pieces);
  free(x->node_pieces);
  free(x->order);
  free(x->stage_of);
  free(x->needed);
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
  rank_calls out = {.runs = 0};
  int lowest = n, highest = -1;
  bool before = false; /* the chunk before is the rank's, and needs keys: one gathered launch has both */
  for (int i = 0, end; i < n; i = end) {
    end = i + 1;
    if (x->rank_of[i] != rank) {
      before = false;
      continue;
    }
    memset(x->needed, 0, (size_t)n);
    const unsigned stages = add_needed(x, i);
    for (; end < n && x->rank_of[end] == rank && stages_of(x, end) == stages; ++end) add_needed(x, end);
    count_run(x, i, end, &out);
    for (int j = 0; j < n; ++j)
      if (x->needed[j]) lowest = j < lowest ? j : lowest, highest = j > highest ? j : highest;
    out.runs += stages != 0 && !before;
    before |= stages != 0;
  }
  out.hull = highest >= lowest ? highest - lowest + 1 : 0;
  return out;
}

typedef struct pass_costs {
  double tile, keys, gradients, merge; /* seconds of a tile; bytes of a chunk; seconds to read or write o of a chunk */
} pass_costs;

static pass_costs costs_of(const exchange *x, bool backward) {
  const luattn_parallel_problem *p = x->problem;
  const double dims = p->head_dim + p->head_dim_v, square = LUATTN_PARALLEL_TILE * LUATTN_PARALLEL_TILE;
  const double rows = x->chunk_rows, part_bytes = stage_part_bytes(p);
  /* Products: of forward S and O; of backward S, dP, dV, dQ and dK. */
  const double flop = backward ? 6.0 * p->head_dim + 4.0 * p->head_dim_v : 2 * dims;
  return (pass_costs){.tile = flop * square * p->heads / (backward ? x->rates->backward : x->rates->forward),
                      .keys = rows * p->heads_kv * dims * p->elem_bytes,
                      .gradients = backward ? rows * p->heads_kv * dims * part_bytes : 0,
                      .merge = backward ? 0 : rows * p->heads * p->head_dim_v * part_bytes / x->rates->memory};
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
  if (x->rates->serial) {
    t->now += load->keys + load->work + load->gradients;
    return;
  }
  t->arrived += load->keys;
  t->now = greater_of(t->now, t->arrived) + load->work;
  t->returned = greater_of(t->returned, t->now) + load->gradients;
}

/* Of the rank's own keys: how much of their launches comes before the other stages (context_parallel's _split_own). */
static double early_share(const rank_calls *calls, bool backward) {
  return !backward ? 1 : calls->calls[0] > 1 ? 1.0 / calls->calls[0] : 0;
}

static rank_time time_of_rank(exchange *x, int rank, const pass_costs *c, bool backward) {
  const int sources = order_sources(x, rank), stages = set_stages(x, rank, sources);
  const rank_calls calls = count_calls(x, rank);
  const double start = x->rates->stage, tiles = x->work[rank * x->ranks + rank] * c->tile;
  const double own = start * calls.calls[0] + tiles + calls.merged[0] * c->merge, early = early_share(&calls, backward);
  double all = tiles, before = 0;
  rank_clock t = {.now = stages > 0 ? early * own : own}, gathered = {0};
  rank_time out = {.in_flight = {0, calls.hull * c->keys}};
  int launches = calls.calls[0];
  for (int stage = 1, at = 0; stage <= stages; ++stage) {
    stage_load load = load_of(x, rank, stage, &at, sources, c);
    gathered.arrived += load.keys, gathered.returned += load.gradients, all += load.work;
    launches += calls.calls[stage];
    load.work += start * calls.calls[stage] + calls.merged[stage] * c->merge;
    add_stage(x, &t, &load);
    out.received += load.bytes;
    out.in_flight[0] = greater_of(out.in_flight[0], load.bytes + before);
    before = load.bytes;
  }
  if (stages > 0) t.now += (1 - early) * own;
  const double host = x->rates->launch;
  out.staged = greater_of(greater_of(t.now, t.returned), host * launches);
  out.gathered = greater_of(gathered.arrived + start * calls.runs + all + gathered.returned, host * calls.runs);
  return out;
}

static void predict(exchange *x, stage_prediction *out) {
  double seconds[2][2] = {{0}}, in_flight[2] = {0}; /* by stages, gathered; forward, backward */
  for (int backward = 0; backward < 2; ++backward) {
    const pass_costs c = costs_of(x, backward != 0);
    double total = 0;
    for (int r = 0; r < x->ranks; ++r) {
      const rank_time one = time_of_rank(x, r, &c, backward != 0);
      double tiles = 0;
      for (int j = 0; j < x->ranks; ++j) tiles += x->work[r * x->ranks + j];
      total += tiles;
      out->most_tiles = greater_of(out->most_tiles, tiles);
      out->received = greater_of(out->received, one.received);
      seconds[0][backward] = greater_of(seconds[0][backward], one.staged);
      seconds[1][backward] = greater_of(seconds[1][backward], one.gathered);
      for (int g = 0; g < 2; ++g) in_flight[g] = greater_of(in_flight[g], one.in_flight[g]);
    }
    out->alone[backward] = total * c.tile + x->rates->stage;
  }
  for (int pass = 0; pass < 2; ++pass) {
    const bool faster = x->problem->schedule == LUATTN_SCHEDULE_AUTO && seconds[1][pass] < seconds[0][pass];
    out->gathered[pass] = faster || x->problem->schedule == LUATTN_SCHEDULE_GATHERED;
    out->seconds[pass] = seconds[out->gathered[pass]][pass];
  }
  out->in_flight = in_flight[out->gathered[0]];
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
