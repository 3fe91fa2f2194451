#include "gen/plan/policy.h"

#include <math.h>

#include "abi/shared_memory.h"

static int max_of(int a, int b) { return a > b ? a : b; }

/* ---- tiles ---- */

/* Rows of a table, for head dims up to max_dim and shared memory of these classes: the first choice first,
 * then those that need fewer registers. */
enum {
  SMALL = 1,
  MIDDLE = 2,
  LARGE = 4,
  ANY = 7, /* 99, 163, 227 KB */
  NOT_SHORT = 8, /* not for short lengths with a mask, nor few rows of decode */
  MANY_ROWS = 16 /* of luattn_target.many_rows alone */
};
typedef struct tile_row {
  int classes, max_dim;
  luattn_tiles choice;
} tile_row;

static const tile_row simt_forward_f32[] = {{ANY, 256, {64, 64, 256, 2, 0, 0}},
                                            {ANY, 256, {64, 32, 256, 2, 0, 0}},
                                            {ANY, 256, {32, 32, 256, 2, 0, 0}},
                                            {ANY, 256, {16, 32, 256, 2, 0, 0}}};
static const tile_row simt_backward_f32[] = {{ANY, 128, {64, 64, 128, 2, 0, 0}},
                                             {ANY, 256, {64, 64, 256, 2, 0, 0}},
                                             {ANY, 256, {32, 32, 256, 2, 0, 0}},
                                             {ANY, 256, {16, 16, 256, 2, 0, 0}}};
static const tile_row simt_f64[] = {{ANY, 128, {32, 32, 128, 2, 0, 0}},
                                    {ANY, 256, {32, 32, 256, 2, 0, 0}},
                                    {ANY, 256, {32, 16, 256, 2, 0, 0}},
                                    {ANY, 256, {16, 16, 256, 2, 0, 0}}};
static const tile_row sm80_forward[] = {
    {ANY, 64, {128, 64, 128, 2, 0, 0}},     {SMALL, 96, {128, 64, 128, 1, 0, 0}},
    {MIDDLE, 96, {128, 64, 128, 2, 0, 0}},  {SMALL, 128, {128, 32, 128, 1, 0, 0}},
    {MIDDLE, 128, {128, 64, 128, 1, 0, 0}}, {LARGE, 128, {128, 64, 128, 2, 0, 0}},
    {MIDDLE, 192, {64, 64, 128, 1, 0, 0}},  {MIDDLE, 256, {128, 64, 256, 1, 0, 0}},
    {LARGE, 256, {128, 64, 256, 2, 0, 0}},  {ANY, 256, {64, 64, 128, 1, 0, 0}},
    {ANY, 256, {64, 32, 128, 1, 0, 0}},     {ANY, 256, {64, 16, 128, 1, 0, 0}}};
/* Two blocks on a multiprocessor where both fit, with 16 KB of a warp's keys and more under way. Short: up to 16 rows of a kv head. Of 32
 * rows, tiles of 32 make 1.17 and 1.4 of the bytes a second (H200, 32 and 4 entries); of 36 and 64, tiles of 64 1.5 to 1.8 of those of 32, but of
 * 20 and 32 rows 0.89 to 0.98. */
static const tile_row decode_forward[] = {
    {LARGE | NOT_SHORT, 64, {32, 128, 128, 3, 0, 0}},
    {LARGE | NOT_SHORT | MANY_ROWS, 128, {64, 64, 128, 3, 0, 0}},
    {LARGE | NOT_SHORT, 128, {32, 64, 128, 3, 0, 0}},
    {LARGE, 64, {16, 128, 128, 3, 0, 0}},  {MIDDLE, 64, {16, 128, 128, 2, 0, 0}}, {SMALL, 64, {16, 128, 128, 2, 0, 0}},
    {LARGE, 128, {16, 64, 128, 3, 0, 0}},  {MIDDLE, 128, {16, 64, 128, 2, 0, 0}}, {SMALL, 128, {16, 64, 128, 2, 0, 0}},
    {LARGE, 256, {16, 64, 128, 3, 0, 0}},  {MIDDLE, 256, {16, 64, 128, 2, 0, 0}}, {ANY, 256, {16, 32, 64, 2, 0, 0}}};
/* Few registers, so that any hooks fit. */
static const tile_row weights_forward[] = {{ANY, 256, {32, 32, 128, 2, 0, 0}}, {ANY, 256, {16, 32, 128, 2, 0, 0}}};
/* Three consumers at short lengths: a tile of 192 queries wastes more work on rows past the end and on
 * masked-out scores than a third consumer gains. */
static const tile_row sm90_forward[] = {{ANY | NOT_SHORT, 64, {192, 128, 512, 3, 0, 0}},
                                        {ANY | NOT_SHORT, 64, {192, 96, 512, 3, 0, 0}},
                                        {ANY, 64, {128, 128, 384, 3, 0, 0}},
                                        {ANY, 192, {128, 128, 384, 2, 0, 0}},
                                        {ANY, 192, {128, 112, 384, 2, 0, 0}},
                                        {ANY, 192, {128, 96, 384, 2, 0, 0}},
                                        {ANY, 256, {128, 96, 384, 2, 0, 0}},
                                        {ANY, 256, {128, 80, 384, 2, 0, 0}},
                                        {ANY, 256, {128, 64, 384, 2, 0, 0}},
                                        {ANY, 256, {128, 32, 384, 2, 0, 0}}};
/* The last are the kernel for head dims above 128, whose scores have a warpgroup, and registers, of their own. */
static const tile_row sm90_backward[] = {{ANY, 64, {128, 128, 384, 2, 0, 0}},
                                         {ANY, 128, {64, 128, 384, 2, 0, 0}},
                                         {ANY, 128, {64, 64, 512, 2, 0, 0}}};
static const tile_row sm90_backward_d256[] = {{ANY, 256, {64, 64, 512, 2, 0, 0}}};
static const tile_row sm80_backward[] = {{SMALL | LARGE, 64, {128, 128, 128, 1, 4, 32}},
                                         {MIDDLE, 64, {64, 128, 128, 1, 4, 32}},
                                         {ANY, 64, {64, 128, 128, 1, 4, 16}},
                                         {ANY, 64, {64, 128, 256, 1, 4, 32}},
                                         {SMALL, 128, {32, 128, 256, 1, 4, 16}},
                                         {MIDDLE, 128, {64, 128, 256, 1, 4, 32}},
                                         {LARGE, 128, {64, 128, 256, 2, 4, 32}},
                                         {MIDDLE | LARGE, 128, {32, 128, 256, 1, 4, 16}},
                                         {ANY, 128, {64, 64, 256, 1, 4, 32}},
                                         {MIDDLE, 256, {64, 64, 256, 1, 4, 32}},
                                         {LARGE, 256, {64, 64, 256, 2, 4, 32}},
                                         {ANY, 256, {32, 32, 128, 1, 2, 16}},
                                         {ANY, 256, {32, 64, 256, 1, 4, 16}}};

#define TABLE(t) \
  { t, (int)(sizeof t / sizeof t[0]) }

/* With the soft cap's fast path, the kernel is bound by some eight instructions per score; a third consumer
 * adds issue slots for them. */
static const luattn_tiles for_softcap_poly = {192, 80, 512, 3, 0, 0};
static bool has_softcap_tiles(const plan *p, int dim) {
  return p->softcap_poly && p->family == LUATTN_SM90 && p->pass == LUATTN_FORWARD && dim > 64 && dim <= 128;
}

/* Of a mask whose blocks have 64 keys, tiles of 128 keys would compute what lies beside a block. */
static const luattn_tiles for_narrow_blocks = {128, 64, 384, 4, 0, 0};
static bool has_narrow_tiles(const plan *p, int dim) {
  return p->by_narrow_blocks && p->family == LUATTN_SM90 && p->pass == LUATTN_FORWARD && dim <= 128;
}

static int class_of(int shared_limit) {
  return shared_limit < 150 * 1024 ? SMALL : shared_limit < 200 * 1024 ? MIDDLE : LARGE;
}

static const tile_row *table_of(const plan *p, int *count) {
  enum { SIMT_F64 = LUATTN_SM90 + 1, SM90_D256, DECODE, WEIGHTS };
  static const struct {
    const tile_row *row;
    int count;
  } tables[][2] = {[LUATTN_SIMT] = {TABLE(simt_forward_f32), TABLE(simt_backward_f32)},
                   [LUATTN_SM80] = {TABLE(sm80_forward), TABLE(sm80_backward)},
                   [LUATTN_SM90] = {TABLE(sm90_forward), TABLE(sm90_backward)},
                   [SIMT_F64] = {TABLE(simt_f64), TABLE(simt_f64)},
                   [SM90_D256] = {{NULL, 0}, TABLE(sm90_backward_d256)},
                   [DECODE] = {TABLE(decode_forward), {NULL, 0}},
                   [WEIGHTS] = {TABLE(weights_forward), {NULL, 0}}};
  const int family = p->weights ? (int)WEIGHTS
                     : p->dtype == LUATTN_F64 ? (int)SIMT_F64
                     : tiles_wide(p)        ? (int)SM90_D256
                     : p->decode            ? (int)DECODE
                                            : (int)p->family;
  const int backward = p->pass == LUATTN_BACKWARD;
  *count = tables[family][backward].count;
  return tables[family][backward].row;
}

/* Whether the row covers these head dims and this shared memory. */
static bool is_row_of(const tile_row *row, const plan *p) {
  return max_of(p->head_dim, p->head_dim_v) <= row->max_dim &&
         (row->classes & class_of(p->shared_limit)) != 0;
}

bool policy_knows_short(const plan *p) {
  int count;
  bool any = false;
  const tile_row *row = table_of(p, &count);
  for (int i = 0; i < count; i++) any |= is_row_of(&row[i], p) && (row[i].classes & NOT_SHORT) != 0;
  return any;
}

bool policy_knows_many_rows(const plan *p) {
  int count;
  const tile_row *row = table_of(p, &count);
  for (int i = 0; i < count; i++)
    if (is_row_of(&row[i], p)) return (row[i].classes & MANY_ROWS) != 0;
  return false;
}

bool policy_tiles(const plan *p, int rank, luattn_tiles *out) {
  int count;
  const tile_row *row = table_of(p, &count);
  if (has_softcap_tiles(p, max_of(p->head_dim, p->head_dim_v))) {
    if (rank == 0) {
      *out = for_softcap_poly;
      return true;
    }
    rank--;
  }
  if (has_narrow_tiles(p, max_of(p->head_dim, p->head_dim_v)) && rank-- == 0) {
    *out = for_narrow_blocks;
    return true;
  }
  for (int i = 0; i < count; i++) {
    if (!is_row_of(&row[i], p)) continue;
    if ((p->lengths == LUATTN_SHORT && (row[i].classes & NOT_SHORT) != 0) || (!p->many_rows && (row[i].classes & MANY_ROWS) != 0)) continue;
    if (rank-- > 0) continue;
    *out = row[i].choice;
    return true;
  }
  return false;
}

/* Estimates the accumulators and operands of a thread: tiles that cannot fit in registers are not worth
 * compiling. ptxas decides in the end. */
bool policy_fits_registers(const plan *p) {
  const int dim_v = (p->head_dim_v + 15) / 16 * 16;
  if (p->family == LUATTN_SIMT || p->pass == LUATTN_BACKWARD) return true; /* hooks decide there, not tiles */
  if (p->family == LUATTN_SM90) { /* 64 rows a warpgroup: scores, P, O, and 32 more */
    const int registers = p->tile_m > 128 ? 160 : 240;
    return p->tile_n / 2 + p->tile_n / 4 + dim_v / 2 + 32 <= registers;
  }
  if (p->decode) {
    const int groups = decode_row_groups(p->tile_m);
    return p->tile_m / groups * (p->tile_n / (p->threads / 32 / groups) + dim_v) / 32 <= 176;
  }
  return p->tile_m / (p->threads / 32) * (p->tile_n + dim_v) / 32 <= 208;
}

int policy_least_list(const plan *p) { return p->pass == LUATTN_BACKWARD ? 8 : 17; }

bool policy_dq_first_store(const plan *p, bool has_mask, bool has_parameters) {
  return p->pass == LUATTN_BACKWARD && p->family == LUATTN_SM90 && !tiles_d256(p) && !p->deterministic &&
         p->tile_m == 64 && has_mask && !has_parameters;
}

/* ---- lowering ---- */

bool policy_softcap_poly(const plan *p) { return p->head_dim + p->head_dim_v <= 256; }

bool policy_softcap_factors_early(const plan *p) { return p->tile_m > 128; }

bool policy_uses_column_intervals(const mask_intervals *columns, bool keep_is_cheap) {
  const bool simple = columns->count == 1 && (columns->period == 0 || columns->period >= MASK_GRID);
  return simple || !keep_is_cheap;
}

bool policy_sums_elements(const plan *p) { return p->family == LUATTN_SM90; }

bool policy_sums_elements_of_distances(const plan *p) { return p->family != LUATTN_SM90 || p->tile_m != 128; }

bool policy_is_crowded(const plan *p, const plan_rows *rows, bool calls, bool mask_by_zero, bool has_pairs) {
  if (p->family != LUATTN_SM90) return false;
  const bool full = p->head_dim > 48 || p->head_dim_v > 48, reads_ahead = rows->bias_row_bytes > 0;
  if (p->pass == LUATTN_FORWARD && reads_ahead && !tiles_have_bias_rows(p, rows)) return true;
  if (p->pass == LUATTN_FORWARD)
    return p->tile_m == 192 && ((calls && p->tile_n == 128) || (full && mask_by_zero) || reads_ahead);
  return p->tile_m == 128 && ((full && !calls && has_pairs) || reads_ahead);
}

/* ---- ptxas and NVVM ---- */

int policy_spills_accepted(const plan *p, const plan_rows *rows, int outlined_work) {
  const bool three = p->family == LUATTN_SM90 && p->pass == LUATTN_FORWARD && p->threads == 512;
  const int next_to_hooks = three ? 0 : outlined_work / 4;
  const bool slow_next = p->family == LUATTN_SM90 && p->pass == LUATTN_BACKWARD;
  const int loading = slow_next && rows->bias_row_bytes > 0 ? 112 : 0;
  /* A mask from data spills in the producer, and where tiles are kept in part; sm80 takes four times as long. */
  const int masking = slow_next && rows->evaluated != NULL ? 128 : 0;
  const int alone = tiles_d256(p) ? 768 : slow_next ? 288 + loading + masking : 64;
  return alone + (next_to_hooks < 1024 ? next_to_hooks : 1024);
}

bool policy_lacks_registers(const plan *p, const compile_work *w) {
  if (p->family != LUATTN_SM90 || p->pass != LUATTN_BACKWARD || tiles_wide(p)) return false;
  const int free = tiles_d256(p) ? 0 : (256 - p->head_dim - p->head_dim_v) / 2 - (p->tile_m - 64), sums = POLICY_SUMS_SM90 + max_of(free, 0);
  return w->of[WORK_SUMMED] > sums * tiles_copies(p).element;
}

/* Of 640 cells, the 13 beyond these numbers spilled 8900 to 42500 bytes in their first tiles, and less in
 * those that followed; none that fit came near both. */
bool policy_surely_spills(const plan *p, const compile_work *w) {
  return p->family == LUATTN_SM80 && p->rank == 0 && w->of[WORK_CALLS] > 4500 && w->of[WORK_SLOTS] > 300;
}

/* After tiles of 128 keys. Of six specs, 302, 846 and 3740 bytes at D 128 became 8, 116 and 496 with 64 x 64, and 10208 and 12288
 * stayed what they were: then sm80's tiles are next, but for the first. */
static int skipped_of_sm90(const plan *p, int spills) {
  const int own = p->tile_m == 128 ? 2 : 1; /* of the family's tiles that are left */
  if (spills > 5000) return own + 2;
  return own == 2 && spills > 350;
}

/* Spills of 25 specs of examples/, tests/specs/ and other places in each row of the tables, D 64 and 128:
 * sm90's backward 308 to 692 bytes, then none in sm80's first or second tiles, 2000 and more none in its
 * third; sm80's backward up to D 64 up to 324 bytes, then 28 at most with chunks of 16, and 388 to 952 none
 * in 64 x 64; sm80's forward up to 204, then 60 at most with one stage, with one exception. */
int policy_tiles_skipped(const plan *p, int spills) {
  const bool backward = p->pass == LUATTN_BACKWARD, narrow = p->head_dim <= 64 && p->head_dim_v <= 64;
  if (p->family == LUATTN_SIMT) return spills > 200;
  if (p->family == LUATTN_SM90 && backward && !tiles_d256(p)) return skipped_of_sm90(p, spills);
  if (p->family == LUATTN_SM90) return backward ? (spills > 350) + (spills > 1000) : spills > 500;
  if (!backward) return spills > 300;
  return narrow && p->rank == 0 ? (spills > 350 ? 3 : 0) : spills > 200;
}

bool policy_bias_rows_crowd(const plan *p, const plan_rows *rows, int spill_bytes) {
  return p->pass == LUATTN_BACKWARD && rows->bias_row_bytes > 0 && !tiles_d256(p) && spill_bytes > 240;
}

/* ---- the time to compile ---- */

/* What 1000 instructions of a kind add, over what `causal` takes for the same family and pass, and the square of that
 * number: fitted to the CPU time of NVRTC 13.0 for some 900 images of the examples, tests/specs and random specs, then
 * raised, as large ones grow faster than their instructions, and by 350 images of specs that are hard to estimate
 * (tests/templates/hard_specs.py). Inlined code has larger weights in sm80 and simt, whose own kernels
 * compile in half of sm90's time. An argument of a call is moved for each score, and simt's backward has two
 * kernels with calls. A block's sum is a register in all of a kernel's loops and an atomic at its end. A
 * bound takes some ten instructions, a bound of bits in 64 bits more than a hundred. */
typedef struct compile_weights {
  double of[WORK_KINDS]; /* inlined, fetched, called, calls, summed, added, sums, flushed, bounds, bits, slots, once */
  double square[WORK_KINDS]; /* slots: of kernels without calls */
  double reads;     /* of the square of what a called function reads: 8 heads' biases in a layer of 48 are 440 numbers, which take
                     * sm80's forward 9.6 times as long as `causal`, and those of 24 a third of that */
  double positions; /* of the square of the numbers of a row and a column, in hundreds, beside calls: 60, 90 and 121 of each take sm80's
                     * forward 6, 11 and 18 times as long */
  double beside;    /* of slots that inlined code fills, beside calls */
  double evaluated; /* the kernel that evaluates a mask for cells */
} compile_weights;
static const compile_weights compile_weight[][2] = {
    [LUATTN_SIMT] = {{.of = {0.32, 0, 0.17, 1.1, 0, 0, 0, 0, 10, 100, 0, 0.05},
                      .square = {[WORK_INLINED] = 0.044, [WORK_CALLED] = 0.02, [WORK_SLOTS] = 50},
                      .reads = 1.1, .positions = 0.6, .beside = 10, .evaluated = 0.4},
                     {.of = {0.33, 0, 0.3, 5, 0.8, 1.4, 0.5, 28, 8, 100, 0, 0.2},
                      .square = {[WORK_INLINED] = 0.02, [WORK_CALLED] = 0.012, [WORK_SLOTS] = 30, [WORK_ONCE] = 2},
                      .reads = 0.13, .positions = 0.5, .beside = 10, .evaluated = 0.4}},
    [LUATTN_SM80] = {{.of = {0.22, 0, 0.16, 0.25, 0, 0, 0, 0, 5, 120, 0, 0.05},
                      .square = {[WORK_INLINED] = 0.024, [WORK_CALLED] = 0.02, [WORK_CALLS] = 0.011, [WORK_BOUNDS] = 2.7},
                      .reads = 0.37, .positions = 2.4, .beside = 20, .evaluated = 0.45},
                     {.of = {0.25, 0, 0.3, 0.6, 1, 1, 0.5, 25, 5, 124, 0, 0.8},
                      .square = {[WORK_INLINED] = 0.006, [WORK_CALLED] = 0.03, [WORK_CALLS] = 0.028, [WORK_BOUNDS] = 2.7, [WORK_SLOTS] = 49, [WORK_ONCE] = 0.7},
                      .reads = 0.06, .positions = 1.4, .beside = 10, .evaluated = 0.45}},
    [LUATTN_SM90] = {{.of = {0.09, 0.2, 0.13, 0.15, 0, 0, 0, 0, 9, 60, 0, 0.1},
                      .square = {[WORK_INLINED] = 0.026, [WORK_FETCHED] = 0.2, [WORK_CALLED] = 0.006, [WORK_CALLS] = 0.003},
                      .reads = 0.18, .positions = 1.05, .beside = 5, .evaluated = 0.3},
                     {.of = {0.11, 0.2, 0.2, 0.55, 1.5, 0.6, 1, 8, 6, 62, 0, 0.5},
                      .square = {[WORK_INLINED] = 0.0045, [WORK_FETCHED] = 0.2, [WORK_CALLED] = 0.02, [WORK_CALLS] = 0.025, [WORK_SLOTS] = 20, [WORK_ONCE] = 0.35},
                      .reads = 0.1, .positions = 0.4, .beside = 5, .evaluated = 0.3}}};
/* Weight of the arguments of calls beyond 4000 in sm80's forward, where they are numbers of rows and columns:
 * these are stored and loaded for each call, and NVVM's value numbering compares each load of a block with
 * the stores before it. */
static const double handed_on = 0.75;
/* Numbers of a head that a forward kernel's call hands on are live in all of its loops. Those that registers do
 * not hold beside the accumulators lie in memory, in the caller and as parameters of the called function, and
 * ptxas takes a time that grows with their square: chains x - 0.1 * floor(x * (a * c)) of 139, 203, 267 and 331
 * such numbers take 4.6, 7.7, 12 and 19 times what `causal` takes in sm80's first tiles, 2.4, 5.1, 9.1 and 18 in
 * simt's. simt's backward has a weight of arguments that covers it. */
static const int head_arguments_held[] = {[LUATTN_SIMT] = 192, [LUATTN_SM80] = 96};
static const double head_arguments_twice = 0.25e-3;
/* The same for sm80's backward, whose accumulators leave fewer registers: a chain of multiply-adds with 82 such numbers takes 23 times
 * what `causal` takes. Where lanes share sums they are not counted. */
static const int head_arguments_held_sm80_backward = 24;
static const double head_arguments_twice_sm80_backward = 0.6e-3;
/* Weight, for each sum of a block, of called code beyond 6000 in sm80's backward: 700 logarithms with 16
 * learned numbers between them take ptxas more than 16 times what `causal` takes, with none a quarter of
 * that. */
static const double summed_in_calls = 0.03;
/* The same in sm90's backward, where 36 sums beside a call of 6100 instructions took 8.7 times as long and spilled 6 KB. */
static const double summed_in_calls_sm90 = 0.012;
/* sm80 kernels that run on sm_90 because the sm90 family lacks registers take little more than half of the
 * time. */
static const double fallback_share = 0.7;

double policy_work_weight(const plan *p, work_kind kind) {
  return compile_weight[p->family][p->pass == LUATTN_BACKWARD].of[kind] / 1000;
}

/* What grows faster than the code. */
static double beyond_the_code(const plan *p, const compile_work *w) {
  const compile_weights *weights = &compile_weight[p->family][p->pass == LUATTN_BACKWARD];
  double more = weights->reads * w->reads + weights->beside * w->beside;
  for (int kind = 0; kind < WORK_KINDS; kind++) {
    const double thousands = kind == WORK_SLOTS && w->of[WORK_CALLS] > 0 ? 0 : w->of[kind] / 1000;
    more += weights->square[kind] * thousands * thousands;
  }
  more += weights->positions * w->positions * w->positions / 1e4;
  return more + (w->is_evaluated ? weights->evaluated : 0);
}

/* What calls hand on. */
static double beside_calls(const plan *p, const compile_work *w) {
  const bool forward = p->pass == LUATTN_FORWARD;
  const double called = w->of[WORK_CALLED] / 1000, flushed = w->of[WORK_FLUSHED];
  double more = 0;
  if (p->family == LUATTN_SM80 && forward && w->of[WORK_SLOTS] > 300)
    more += handed_on * fmax(w->of[WORK_CALLS] / 1000 - 4, 0);
  if (p->family != LUATTN_SM90 && forward) {
    const double beyond = fmax(w->head_arguments - head_arguments_held[p->family], 0);
    more += head_arguments_twice * beyond * beyond;
  }
  if (p->family == LUATTN_SM80 && !forward) {
    const double beyond = fmax(w->head_arguments - head_arguments_held_sm80_backward, 0);
    more += head_arguments_twice_sm80_backward * beyond * beyond;
    if (!p->fallback) more += summed_in_calls * flushed * fmax(called - 6, 0);
  }
  if (p->family == LUATTN_SM90 && !forward)
    more += summed_in_calls_sm90 * fmax(flushed - POLICY_SUMS_SM90, 0) * called;
  return more;
}

double policy_compile_estimate(const plan *p, const compile_work *w) {
  double estimate = 1 + beyond_the_code(p, w) + beside_calls(p, w);
  for (int kind = 0; kind < WORK_KINDS; kind++) estimate += policy_work_weight(p, kind) * w->of[kind];
  return p->fallback ? fallback_share * estimate : estimate;
}

/* Passes of NVVM's optimizer that are disabled for a kernel: combining instructions, repeated combining, and
 * hoisting loop invariants. They take a fortieth to a tenth of the compile time, in sm80's backward up to a
 * sixth, and most kernels are as fast without; T5's forward above head dim 192 is 5 % slower, sm80's backward
 * up to D 128 without a mask and that of some grids 2 to 3 %. Chosen by measurements on an H200 and an H100
 * (bench/journal: compile_time.md, simt.md, parameter_gradients_sm80.md). Disabling more would slow down
 * narrow heads, the masks of grids in forward, f32's forward and all other backward kernels. The option is
 * undocumented; an NVRTC that refuses it compiles with all passes, and one that does not know a pass by this
 * name disables none. Only options whose effect ends with the compilation are listed: others stay on for
 * whatever the process compiles next (parameter_gradients_sm80.md). */
static const char combine_less_often[] = "-full-inst-combine=0",
                  combine_nothing[] = "-disable-InstructionCombiningPass",
                  hoist_nothing[] = "-disable-LICMPass";

static int left_out_of_forward(const plan *p, bool is_grid, const char *out[POLICY_MAX_LEFT_OUT]) {
  const bool is_d256 = p->head_dim > 192 && p->head_dim_v > 192;
  const bool simt = p->family == LUATTN_SIMT, is_narrow = p->family == LUATTN_SM90 && !is_d256;
  int n = 0;
  out[n++] = simt || is_grid || is_narrow ? combine_less_often : combine_nothing;
  if (is_d256 && !is_grid && (simt || p->family == LUATTN_SM90)) out[n++] = hoist_nothing;
  return n;
}

static int left_out_of_backward(const plan *p, const char *out[POLICY_MAX_LEFT_OUT]) {
  const bool simt = p->family == LUATTN_SIMT, sm80 = p->family == LUATTN_SM80;
  int n = 0;
  if (simt) out[n++] = combine_less_often;
  if (sm80) out[n++] = combine_nothing;
  if (simt || sm80) out[n++] = hoist_nothing;
  return n;
}

int policy_left_out_passes(const plan *p, bool is_grid, const char *out[POLICY_MAX_LEFT_OUT]) {
  if (p->dtype == LUATTN_F64) return 0;
  return p->pass == LUATTN_BACKWARD ? left_out_of_backward(p, out) : left_out_of_forward(p, is_grid, out);
}
