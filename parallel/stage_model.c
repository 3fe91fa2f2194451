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
} exchange;

static int node_of(const exchange *x, int rank) { return rank / x->rates->node; }

static bool open_exchange(exchange *x) {
  const size_t n = (size_t)x->ranks;
  x->work = calloc(n * n, sizeof *x->work);
  x->pieces = calloc(n * n, sizeof *x->pieces);
  x->node_pieces = calloc((size_t)x->nodes * n, sizeof *x->node_pieces);
  x->order = calloc(n, sizeof *x->order);
  return x->work != NULL && x->pieces != NULL && x->node_pieces != NULL && x->order != NULL;
}

static void close_exchange(exchange *x) {
  free(x->work);
  free(x->pieces);
  free(x->node_pieces);
  free(x->order);
}

/* needs [ranks + nodes]: whether chunk j of keys is needed there, filled anew for each j. */
static void sum_chunks(exchange *x, const chunk_counts *counts, const int *rank_of, unsigned char *needs) {
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

typedef struct pass_costs {
  double tile, keys, gradients, merge; /* seconds of a tile; bytes of a chunk; seconds of a merge */
} pass_costs;

static pass_costs costs_of(const exchange *x, bool backward) {
  const luattn_parallel_problem *p = x->problem;
  const double dims = p->head_dim + p->head_dim_v, square = LUATTN_PARALLEL_TILE * LUATTN_PARALLEL_TILE;
  const double rows = x->chunk_rows;
  /* Products: of forward S and O; of backward S, dP, dV, dQ and dK. */
  const double flop = backward ? 6.0 * p->head_dim + 4.0 * p->head_dim_v : 2 * dims;
  return (pass_costs){
      .tile = flop * square * p->heads / (backward ? x->rates->backward : x->rates->forward),
      .keys = rows * p->heads_kv * dims * p->elem_bytes,
      .gradients = backward ? rows * p->heads_kv * dims * 4 : 0,
      .merge = backward ? 0 : 3 * x->own * rows * p->heads * p->head_dim_v * p->elem_bytes / x->rates->memory};
}

/* The time of one rank. received, in_flight: bytes of keys, in all and of the two largest successive stages. */
static double rank_seconds(const exchange *x, int rank, const pass_costs *c, double *received, double *in_flight) {
  const int sources = order_sources(x, rank);
  double arrived = 0, returned = 0, t = x->rates->stage + x->work[rank * x->ranks + rank] * c->tile, before = 0;
  *received = *in_flight = 0;
  for (int at = 0, size = 1, stage = 0; at < sources; at += size, size *= stage++ > 0 ? 2 : 1) {
    double work = 0, bytes = 0;
    for (int i = at; i < sources && i < at + size; ++i) {
      const int source = x->order[i];
      arrived += keys_seconds(x, rank, source, c->keys);
      returned += gradients_seconds(x, rank, source, c->gradients);
      work += x->work[rank * x->ranks + source] * c->tile;
      bytes += x->pieces[rank * x->ranks + source] * c->keys;
    }
    t = (t > arrived ? t : arrived) + x->rates->stage + work + c->merge;
    *received += bytes;
    if (bytes + before > *in_flight) *in_flight = bytes + before;
    before = bytes;
  }
  return t > arrived + returned ? t : arrived + returned;
}

static void predict(const exchange *x, stage_prediction *out) {
  for (int backward = 0; backward < 2; ++backward) {
    const pass_costs c = costs_of(x, backward != 0);
    double total = 0;
    for (int r = 0; r < x->ranks; ++r) {
      double received, in_flight, tiles = 0;
      const double seconds = rank_seconds(x, r, &c, &received, &in_flight);
      for (int j = 0; j < x->ranks; ++j) tiles += x->work[r * x->ranks + j];
      total += tiles;
      if (tiles > out->most_tiles) out->most_tiles = tiles;
      if (seconds > out->seconds[backward]) out->seconds[backward] = seconds;
      if (received > out->received) out->received = received;
      if (in_flight > out->in_flight) out->in_flight = in_flight;
    }
    out->alone[backward] = total * c.tile + x->rates->stage;
  }
}

bool stage_predict(const luattn_parallel_problem *problem, const luattn_parallel_rates *rates,
                   const chunk_counts *counts, int chunk_rows, const int *rank_of, stage_prediction *out) {
  exchange x = {.problem = problem,
                .rates = rates,
                .ranks = problem->ranks,
                .nodes = (problem->ranks + rates->node - 1) / rates->node,
                .chunk_rows = chunk_rows,
                .own = counts->chunks / problem->ranks};
  unsigned char *needs = malloc((size_t)x.ranks + (size_t)x.nodes);
  const bool ready = open_exchange(&x) && needs != NULL;
  *out = (stage_prediction){0};
  if (ready) {
    sum_chunks(&x, counts, rank_of, needs);
    predict(&x, out);
  }
  free(needs);
  close_exchange(&x);
  return ready;
}
