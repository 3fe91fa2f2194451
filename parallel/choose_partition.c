/* choose_partition.c: tries partitions at several sizes of chunks, and takes the fastest. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/struct_size.h"
#include "parallel/stage_model.h"

/* One size of chunks: counts of each layer, and their sum by weights. */
typedef struct scale {
  int chunks, chunk_rows;
  double *layer; /* [num_layers][chunks][chunks] */
  double *sum;   /* [chunks][chunks] */
} scale;

typedef struct chooser {
  const luattn_parallel_problem *problem;
  luattn_parallel_rates rates;
  luattn_parallel_candidate candidate[LUATTN_PARALLEL_MAX_CANDIDATES];
  int num_candidates, chosen;
  int *rank_of, *best; /* [chunks]; best: of the fastest so far */
  double passes[2];    /* seconds of what was judged last: forward, backward */
  luattn_parallel_levels levels[LUATTN_PARALLEL_MAX_LEVELS];
  int num_levels;
  int gathered[LUATTN_PARALLEL_MAX_LAYERS], best_gathered[LUATTN_PARALLEL_MAX_LAYERS];     /* bits of passes */
  int overlapped[LUATTN_PARALLEL_MAX_LAYERS], best_overlapped[LUATTN_PARALLEL_MAX_LAYERS]; /* likewise */
  luattn_error *err;
} chooser;

static luattn_status no_memory(luattn_error *err) {
  return luattn_fail(err, LUATTN_NO_MEMORY, "parallel plan: out of memory");
}

/* ---- arguments ---- */

static double or_default(double given, double usual) { return given == 0 ? usual : given; }

static luattn_status take_rates(const luattn_parallel_rates *given, luattn_parallel_rates *out, luattn_error *err) {
  *out = (luattn_parallel_rates){.forward = or_default(given->forward, 750e12),
                                 .backward = or_default(given->backward, 605e12),
                                 .peer = or_default(given->peer, 380e9),
                                 .network = or_default(given->network, 45e9),
                                 .memory = or_default(given->memory, 3.6e12),
                                 .stage = or_default(given->stage, 12e-6),
                                 .node = given->node == 0 ? 8 : given->node,
                                 .launch = or_default(given->launch, 5e-6),
                                 .exchange = or_default(given->exchange, 20e-6),
                                 .copies = {given->copies[0], given->copies[1]}};
  const struct {
    const char *name;
    double value;
  } all[] = {{"forward", out->forward}, {"backward", out->backward}, {"peer", out->peer},
             {"network", out->network}, {"memory", out->memory},     {"stage", out->stage},
             {"node", out->node},       {"launch", out->launch},     {"exchange", out->exchange}};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    if (!(all[i].value > 0 && all[i].value < INFINITY))
      return luattn_fail(err, LUATTN_INVALID,
                         "parallel plan: rates.%s: is %g, expected a finite number above 0; leave it 0 for an H200's",
                         all[i].name, all[i].value);
  for (int pass = 0; pass < 2; ++pass)
    if (given->copies[pass] < LUATTN_COPIES_OVERLAPPED || given->copies[pass] > LUATTN_COPIES_EITHER)
      return luattn_fail(err, LUATTN_INVALID,
                         "parallel plan: rates.copies[%d]: is %d, expected %d to %d, of luattn_copies", pass,
                         given->copies[pass], LUATTN_COPIES_OVERLAPPED, LUATTN_COPIES_EITHER);
  return LUATTN_OK;
}

static luattn_status check_size(const char *name, int value, int least, int most, luattn_error *err) {
  if (value >= least && value <= most) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "parallel plan: %s: is %d, expected %d to %d", name, value, least, most);
}

static luattn_status check_layers(const luattn_parallel_problem *p, luattn_error *err) {
  for (int i = 0; i < p->num_layers; ++i) {
    const luattn_parallel_layers *l = &p->layers[i];
    if (l->tiles == NULL)
      return luattn_fail(err, LUATTN_INVALID,
                         "parallel plan: layers[%d].tiles: is NULL; give what luattn_mask_chunks counted", i);
    if (!(l->weight > 0 && l->weight < INFINITY))
      return luattn_fail(err, LUATTN_INVALID, "parallel plan: layers[%d].weight: is %g, expected a number above 0", i,
                         l->weight);
    for (size_t c = 0; c < (size_t)p->chunks * (size_t)p->chunks; ++c)
      if (!(l->tiles[c] >= 0 && l->tiles[c] < INFINITY))
        return luattn_fail(err, LUATTN_INVALID,
                           "parallel plan: layers[%d].tiles: is %g for chunks %zu and %zu, expected a count", i,
                           (double)l->tiles[c], c / (size_t)p->chunks, c % (size_t)p->chunks);
  }
  return LUATTN_OK;
}

static luattn_status check(const luattn_parallel_problem *p, luattn_error *err) {
  TRY(check_size("ranks", p->ranks, 1, LUATTN_PARALLEL_MAX_RANKS, err));
  TRY(check_size("chunks", p->chunks, 1, LUATTN_PARALLEL_MAX_CHUNKS, err));
  TRY(check_size("chunk_rows", p->chunk_rows, LUATTN_PARALLEL_TILE, INT_MAX / p->chunks, err));
  TRY(check_size("num_layers", p->num_layers, 1, LUATTN_PARALLEL_MAX_LAYERS, err));
  TRY(check_size("heads", p->heads, 1, 1 << 20, err));
  TRY(check_size("heads_kv", p->heads_kv, 1, p->heads, err));
  TRY(check_size("head_dim", p->head_dim, 1, 1024, err));
  TRY(check_size("head_dim_v", p->head_dim_v, 1, 1024, err));
  TRY(check_size("elem_bytes", p->elem_bytes, 1, 8, err));
  TRY(check_size("schedule", p->schedule, LUATTN_SCHEDULE_AUTO, LUATTN_SCHEDULE_GATHERED, err));
  if (p->chunk_rows % LUATTN_PARALLEL_TILE != 0)
    return luattn_fail(err, LUATTN_INVALID, "parallel plan: chunk_rows: is %d, expected a multiple of %d",
                       p->chunk_rows, LUATTN_PARALLEL_TILE);
  if (p->chunks % p->ranks != 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "parallel plan: chunks: is %d, expected a multiple of ranks, which is %d; pad the sequence to a "
                       "multiple of %lld rows",
                       p->chunks, p->ranks, (long long)p->ranks * LUATTN_PARALLEL_TILE);
  if (p->layers == NULL) return luattn_fail(err, LUATTN_INVALID, "parallel plan: layers: is NULL");
  return check_layers(p, err);
}

/* ---- sizes of chunks ---- */

/* Counts of chunks that are `times` as long as the given ones. */
static bool open_scale(const luattn_parallel_problem *p, int times, scale *out) {
  const size_t fine = (size_t)p->chunks, n = fine / (size_t)times, layers = (size_t)p->num_layers;
  *out = (scale){.chunks = (int)n, .chunk_rows = p->chunk_rows * times};
  out->layer = calloc(layers * n * n, sizeof *out->layer);
  out->sum = calloc(n * n, sizeof *out->sum);
  if (out->layer == NULL || out->sum == NULL) return false;
  for (size_t l = 0; l < layers; ++l) {
    double *to = out->layer + l * n * n;
    for (size_t i = 0; i < fine; ++i)
      for (size_t j = 0; j < fine; ++j)
        to[i / (size_t)times * n + j / (size_t)times] += p->layers[l].tiles[i * fine + j];
    for (size_t c = 0; c < n * n; ++c) out->sum[c] += p->layers[l].weight * to[c];
  }
  return true;
}

static void close_scale(scale *s) {
  free(s->layer);
  free(s->sum);
}

/* ---- candidates ---- */

/* Bytes of q, k, v, o and lse of a rank, of k and v as they travel, and by stages of two parts of o. */
static double own_bytes(const luattn_parallel_problem *p, bool gathered) {
  const double rows = (double)p->chunks * p->chunk_rows / p->ranks, dims = p->head_dim + p->head_dim_v;
  const double parts = gathered ? 0 : 2 * stage_part_bytes(p) * p->heads * p->head_dim_v;
  return rows * ((p->heads + 2 * p->heads_kv) * dims * p->elem_bytes + 4.0 * p->heads + parts);
}

static double most_over_mean(const scale *s, const int *rank_of, int ranks) {
  double load[LUATTN_PARALLEL_MAX_RANKS] = {0}, total = 0, most = 0;
  for (size_t i = 0; i < (size_t)s->chunks; ++i)
    for (size_t j = 0; j < (size_t)s->chunks; ++j) load[rank_of[i]] += s->sum[i * (size_t)s->chunks + j];
  for (int r = 0; r < ranks; ++r) total += load[r], most = load[r] > most ? load[r] : most;
  return total > 0 ? most * ranks / total : 1;
}

static void swap_ranks(int *rank_of, int i, int j) {
  const int of_i = rank_of[i];
  rank_of[i] = rank_of[j], rank_of[j] = of_i;
}

static bool judge(chooser *x, const scale *s, const int *rank_of, luattn_parallel_candidate *out) {
  const luattn_parallel_problem *p = x->problem;
  double seconds[2] = {0}, alone[2] = {0};
  out->imbalance = most_over_mean(s, rank_of, p->ranks);
  for (int l = 0; l < p->num_layers; ++l) {
    const chunk_counts counts = {s->chunks, s->layer + (size_t)l * (size_t)s->chunks * (size_t)s->chunks};
    stage_prediction one;
    if (!stage_predict(p, &x->rates, &counts, s->chunk_rows, rank_of, &one)) return false;
    for (int pass = 0; pass < 2; ++pass) {
      seconds[pass] += p->layers[l].weight * one.seconds[pass];
      alone[pass] += p->layers[l].weight * one.alone[pass];
    }
    out->received = fmax(out->received, one.received);
    out->memory = fmax(out->memory, own_bytes(p, one.gathered[0]) + one.in_flight);
    x->gathered[l] = one.gathered[0] | one.gathered[1] << 1;
    x->overlapped[l] = one.overlapped[0] | one.overlapped[1] << 1;
  }
  out->forward = alone[0] / p->ranks / seconds[0], out->backward = alone[1] / p->ranks / seconds[1];
  out->seconds = seconds[0] + seconds[1];
  memcpy(x->passes, seconds, sizeof seconds);
  return true;
}

/* Of these many chunks at most are pairs swapped one by one, and these many are tried. */
enum { MOST_SWAPPED = 64, MOST_TRIED = 6000 };

/* Swaps chunks of two ranks as long as the predicted time falls. *c: judge's of rank_of, before and after. */
static bool swap_for_time(chooser *x, const scale *s, int *rank_of, luattn_parallel_candidate *c) {
  int tried = 0;
  if (s->chunks > MOST_SWAPPED) return true;
  for (bool fell = true; fell;) {
    fell = false;
    for (int i = 0; i < s->chunks; ++i)
      for (int j = i + 1; j < s->chunks; ++j) {
        if (rank_of[i] == rank_of[j]) continue;
        if (++tried > MOST_TRIED) return judge(x, s, rank_of, c);
        luattn_parallel_candidate other = {.partition = c->partition, .chunk_rows = c->chunk_rows};
        swap_ranks(rank_of, i, j);
        if (!judge(x, s, rank_of, &other)) return false;
        if (other.seconds < c->seconds)
          *c = other, fell = true;
        else
          swap_ranks(rank_of, i, j);
      }
  }
  return judge(x, s, rank_of, c);
}

/* Predictions that differ by less than 1 % do not say which is faster: contiguous and zigzag, whose ranks have the fewest
 * runs of rows, are taken then, in whichever order candidates come. */
static bool is_faster(const luattn_parallel_candidate *c, const luattn_parallel_candidate *best) {
  const bool has_few_runs = c->partition < LUATTN_PARTITION_BY_COUNTS;
  if (has_few_runs == (best->partition < LUATTN_PARTITION_BY_COUNTS)) return c->seconds < best->seconds;
  return has_few_runs ? 0.99 * c->seconds <= best->seconds : c->seconds < 0.99 * best->seconds;
}

static bool try_partition(chooser *x, const scale *s, luattn_partition partition) {
  luattn_parallel_candidate c = {.partition = partition, .chunk_rows = s->chunk_rows};
  if (x->num_candidates == LUATTN_PARALLEL_MAX_CANDIDATES) return true;
  if (!partition_suits(partition, s->chunks, x->problem->ranks)) return true;
  const chunk_counts counts = {s->chunks, s->sum};
  if (!partition_fill(partition, &counts, x->problem->ranks, x->rank_of) || !judge(x, s, x->rank_of, &c)) return false;
  if (partition == LUATTN_PARTITION_BY_TIME && !swap_for_time(x, s, x->rank_of, &c)) return false;
  if (x->num_candidates == 0 || is_faster(&c, &x->candidate[x->chosen])) {
    x->chosen = x->num_candidates;
    memcpy(x->best_gathered, x->gathered, sizeof x->gathered);
    memcpy(x->best_overlapped, x->overlapped, sizeof x->overlapped);
    memcpy(x->best, x->rank_of, (size_t)s->chunks * sizeof *x->best);
  }
  x->candidate[x->num_candidates++] = c;
  return true;
}

/* What is contiguous, or zigzag, is the same at each size of chunks, and fewer keys travel in shorter ones. */
static luattn_status try_all(chooser *x) {
  const luattn_parallel_problem *p = x->problem;
  for (int times = 1; p->chunks % times == 0 && p->chunks / times >= p->ranks; times *= 2) {
    scale s;
    bool done = p->chunks / times % p->ranks != 0;
    if (done) break;
    done = open_scale(p, times, &s);
    for (int partition = LUATTN_PARTITION_CONTIGUOUS; done && partition <= LUATTN_PARTITION_BY_TIME; ++partition)
      if (times == 1 || partition >= LUATTN_PARTITION_BY_COUNTS)
        done = try_partition(x, &s, (luattn_partition)partition);
    close_scale(&s);
    if (!done) return no_memory(x->err);
  }
  return LUATTN_OK;
}

/* ---- heads shared out before rows ---- */

/* Seconds in which a rank's rows of all heads become more rows of some, and o the other way, of all layers. */
static double heads_seconds(const chooser *whole, int across, double *bytes) {
  const luattn_parallel_problem *p = whole->problem;
  const double rows = (double)p->chunks * p->chunk_rows / p->ranks, dims = p->head_dim + p->head_dim_v;
  double layers = 0;
  for (int l = 0; l < p->num_layers; ++l) layers += p->layers[l].weight;
  *bytes = rows * (p->heads + p->heads_kv) * dims * p->elem_bytes * (across - 1) / across;
  return layers * (2 * whole->rates.exchange + *bytes / whole->rates.peer);
}

static bool predict_levels(const chooser *whole, const scale *s, int across, luattn_parallel_levels *out) {
  luattn_parallel_problem p = *whole->problem;
  p.ranks /= across, p.heads /= across, p.heads_kv /= across;
  chooser x = {.problem = &p, .rates = whole->rates, .rank_of = whole->rank_of};
  x.rates.node = whole->rates.node > across ? whole->rates.node / across : 1;
  *out = (luattn_parallel_levels){.across = across};
  const double more = heads_seconds(whole, across, &out->exchanged);
  double least = INFINITY;
  for (int partition = LUATTN_PARTITION_CONTIGUOUS; partition <= LUATTN_PARTITION_BY_COUNTS; ++partition) {
    const chunk_counts counts = {s->chunks, s->sum};
    luattn_parallel_candidate c = {.partition = (luattn_partition)partition};
    if (!partition_suits(c.partition, s->chunks, p.ranks)) continue;
    if (!partition_fill(c.partition, &counts, p.ranks, x.rank_of) || !judge(&x, s, x.rank_of, &c)) return false;
    if (c.seconds >= least) continue;
    least = c.seconds;
    out->forward = c.forward * x.passes[0] / (x.passes[0] + more);
    out->backward = c.backward * x.passes[1] / (x.passes[1] + more);
  }
  return true;
}

/* At one size of chunks, of which there are few enough to be quick. */
static luattn_status try_levels(chooser *x) {
  enum { MOST_CHUNKS = 256 };
  const luattn_parallel_problem *p = x->problem;
  const int node = x->rates.node < p->ranks ? x->rates.node : p->ranks;
  int times = 1;
  while (p->chunks / times > MOST_CHUNKS && p->chunks % (2 * times * p->ranks) == 0) times *= 2;
  scale s;
  bool done = open_scale(p, times, &s);
  for (int across = 2; done && across <= node && x->num_levels < LUATTN_PARALLEL_MAX_LEVELS; ++across) {
    if (node % across != 0 || p->ranks % across != 0 || p->heads % across != 0 || p->heads_kv % across != 0) continue;
    done = predict_levels(x, &s, across, &x->levels[x->num_levels++]);
  }
  close_scale(&s);
  return done ? LUATTN_OK : no_memory(x->err);
}

/* ---- the plan ---- */

/* A plan and what its pointers point at. */
typedef struct whole_plan {
  luattn_parallel_plan plan;
  luattn_parallel_candidate candidate[LUATTN_PARALLEL_MAX_CANDIDATES];
  int gathered[LUATTN_PARALLEL_MAX_LAYERS], overlapped[LUATTN_PARALLEL_MAX_LAYERS];
  luattn_parallel_levels levels[LUATTN_PARALLEL_MAX_LEVELS];
  int rank_of[];
} whole_plan;

static luattn_status give(const chooser *x, luattn_parallel_plan **out) {
  const luattn_parallel_candidate *best = &x->candidate[x->chosen];
  const int chunks = x->problem->chunks / (best->chunk_rows / x->problem->chunk_rows);
  whole_plan *w = malloc(sizeof *w + (size_t)chunks * sizeof *w->rank_of);
  if (w == NULL) return no_memory(x->err);
  memcpy(w->candidate, x->candidate, sizeof w->candidate);
  memcpy(w->gathered, x->best_gathered, sizeof w->gathered);
  memcpy(w->overlapped, x->best_overlapped, sizeof w->overlapped);
  memcpy(w->levels, x->levels, sizeof w->levels);
  memcpy(w->rank_of, x->best, (size_t)chunks * sizeof *w->rank_of);
  w->plan = (luattn_parallel_plan){.ranks = x->problem->ranks,
                                   .chunks = chunks,
                                   .chunk_rows = best->chunk_rows,
                                   .rank_of = w->rank_of,
                                   .num_candidates = x->num_candidates,
                                   .chosen = x->chosen,
                                   .candidates = w->candidate,
                                   .gathered = w->gathered,
                                   .overlapped = w->overlapped,
                                   .num_levels = x->num_levels,
                                   .levels = w->levels};
  *out = &w->plan;
  return LUATTN_OK;
}

luattn_status luattn_parallel_plan_new(const luattn_parallel_problem *given, luattn_parallel_plan **out,
                                       luattn_error *err) {
  fail_clear(err);
  NEED(given);
  NEED(out);
  *out = NULL;
  static const struct_rule rule = {"luattn_parallel_problem", sizeof(luattn_parallel_problem),
                                   sizeof(luattn_parallel_problem)};
  luattn_parallel_problem p;
  TRY(struct_take(&rule, "parallel plan", given, &p, err));
  TRY(check(&p, err));
  chooser *x = calloc(1, sizeof *x);
  if (x == NULL) return no_memory(err);
  x->problem = &p, x->err = err;
  x->rank_of = malloc(2 * (size_t)p.chunks * sizeof *x->rank_of);
  luattn_status status = x->rank_of != NULL ? take_rates(&p.rates, &x->rates, err) : no_memory(err);
  if (x->rank_of != NULL) x->best = x->rank_of + p.chunks;
  if (status == LUATTN_OK) status = try_all(x);
  if (status == LUATTN_OK) status = try_levels(x);
  if (status == LUATTN_OK) status = give(x, out);
  free(x->rank_of);
  free(x);
  return status;
}

void luattn_parallel_plan_free(luattn_parallel_plan *plan) { free(plan); }
