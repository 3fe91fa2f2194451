/* lowered.h: a lowered spec: every expression that spec.cuh prints, with all choices of the contract made.
 * Data for plan's retries and for emit/, which prints it; only lower_spec writes it.
 *
 * Everything is built in spec->traced.g, which must be the caller's own clone. */
#ifndef LUATTN_GEN_LOWERED_H
#define LUATTN_GEN_LOWERED_H

#include "common/fail.h"
#include "gen/analysis/specs/spec_tangents.h"
#include "gen/lower/deps.h"
#include "gen/plan/policy.h"

/* Indices of VAR_PART: the two summands of a position. */
enum { PART_Q_BASE, PART_Q_OFFSET, PART_KV_BASE, PART_KV_OFFSET };

/* Parameter gradients that are sums of dS, by what they are summed over, as in contract/contract.cuh.
 * VAR_GRAD is the sum. */
enum { SUM_DISTANCE, SUM_ROW, SUM_COL, SUM_ELEMENT, SUM_LINEAR, SUM_KINDS };

/* `has`: the parameters of a function of the contract. */
enum { HAS_HEAD = 1, HAS_ROW = 2, HAS_COL = 4, HAS_Q = 8, HAS_KV = 16 };
#define HAS_ELEMENT (HAS_HEAD | HAS_ROW | HAS_COL | HAS_Q | HAS_KV)

/* Where a hoisted value is kept: struct Head, Row and Col of spec.cuh. */
enum { SLOTS_HEAD, SLOTS_ROW, SLOTS_COL, SLOTS_KINDS };
typedef struct slots {
  int count, capacity;
  ir_ref *ref;
} slots; /* ascending */

/* A hook that kernels repeat, and its expressions. */
typedef struct hook {
  const char *name;
  int cost, copies;       /* instructions, roughly; number of inlined copies */
  bool outlined, inlined; /* inlined: always */
  int has, num_roots;
  const ir_ref *roots;
  const bool *need; /* per node: the hook computes or reads it */
  bool calls_ops;   /* the hook is outlined and calls its long functions */
} hook;
enum {
  LOWERED_MAX_HOOKS = 16 + SPEC_MAX_RED,
  LOWERED_MAX_CONJUNCTS = 8,
  LOWERED_MAX_ACC = 48, /* sums of a thread, a register each: sm80's backward spills 20 KB for 64 of them */
  LOWERED_LANES = 32    /* sums that a register of a warp's lanes holds */
};

/* Compile-time facts that kernels branch on, as contract/contract.cuh names them. */
typedef struct lowered_facts {
  bool keep_is_cheap, rows_need_full_data, only_keep_reads_row, row_from_start, columns_need_full_data;
  bool score_reads_col, reads_columns, has_distance_term, has_displacement_term, has_bias_row;
  bool adds_displacement_term; /* a score is dot + term, so that sums of products may begin at terms */
  bool grad_is_light, grad_reads_row, grad_adds_to_memory;
  bool keep_runs;                      /* keep_by_column in forward, keep_by_row in backward */
  bool tile_bits;                      /* the mask is evaluated for cells, where a launch does so (has_tile_bits) */
  bool same_bucket;                    /* a tile's distances may all add to one place (may_be_same_bucket) */
  bool bounds_reals, bounds_small;     /* tile_class bounds a real number; only integers of 32 bits */
  int score_reads;                     /* 0: nothing; 1: memory for each column; 2: for each element */
  int row_intervals, column_intervals; /* number of mask intervals of a row, a column; 0: only keep decides */
  int prob_rows;                       /* numbers of a backward row that prob reads, as bits; -1: not separate
                                        * from ds */
  int sums;                            /* the set of 1 << SUM_* that occur */
} lowered_facts;

/* What an expression that is lowered is for, which decides how coarse sigmoids and hyperbolic tangents may be
 * (multiply_add.c). APPROXIMATE_NOWHERE: sums of a row, saved numbers, what has to be the same bits whichever thread
 * computes it. */
typedef enum approximate_in { APPROXIMATE_NOWHERE, APPROXIMATE_SCORE, APPROXIMATE_WEIGHT } approximate_in;

/* Numbers of a row, and with tangents of gradients these besides. */
#define LOWERED_MAX_ROWS (2 * DERIVED_MAX_ROWS)

typedef struct lowered {
  arena *a;
  ir *g;
  deps deps;
  const struct luattn_spec *spec;
  const mask_info *mask;
  const plan *plan;

  /* Scores. */
  approximate_in approximate; /* what is being lowered */
  bool dot_unit;              /* score() gives score / scale, and the online function multiplies */
  bool step_unit;             /* score() gives a * score + b, the first step of the online function */
  bool bounded;               /* scores lie within score_lo and score_hi, and no maximum is kept */
  double score_lo, score_hi;
  int bounded_state; /* the state that would be the maximum, and what stands for it */
  double bounded_max;
  ir_ref score;         /* of VAR_DOT and indices */
  ir_ref score_with;    /* the score, with VAR_TERM for distance_term or bias_row; IR_NONE in backward */
  ir_ref distance_term; /* over a grid, of kv - q along each axis; IR_NONE: none */
  ir_ref bias_row;      /* the load of an input along kv; IR_NONE: none. sm90 */
  ir_ref bias_row_index[4];
  int num_bias_row_index, bias_row_q_axis;   /* the axis that only q indexes; -1: q occurs in others, too */
  ir_ref row_shift;                          /* the shift that was split off `score`, computed from VAR_PART; IR_NONE:
                                              * none */
  bool red_shifted[SPEC_MAX_RED];            /* a maximum of scores, to which the kernel adds the shift */
  ir_ref score_bounds;                       /* of VAR_SCORE and indices: its bounds decide tile skipping; IR_NONE: no
                                              * tile is skipped */
  bool bounds_are_long;                      /* scores have bounds, but `score_bounds` would take too long to compile */
  ir_ref keep;                               /* IR_NONE: no mask */
  ir_ref flag_line;                          /* the load of a flag at kv that is a conjunct of `keep`; IR_NONE: none */
  ir_ref keep_beside[LOWERED_MAX_CONJUNCTS]; /* the other conjuncts */
  int num_keep_beside;
  bool has_lists; /* the mask has IR_LISTED */
  bool
      keep_of_query; /* lanes ask queries' lists: keep_of_list, of which a warp's keys need one answer for each query */
  ir_ref keep_of_list[LOWERED_MAX_CONJUNCTS]; /* the conjuncts of `keep` besides keep_beside */
  int num_keep_of_list;
  bool positions_as_real; /* positions were converted before they were combined: exact below 2^24 in float */

  /* The online function. */
  online_split step; /* of VAR_SCORE as stored */
  ir_ref init[SPEC_MAX_STATE];
  bool red_deferred[SPEC_MAX_RED], state_deferred[SPEC_MAX_STATE];
  bool red_place[SPEC_MAX_RED]; /* a maximum from whose terms the kernel takes the key's position: REDUCE_PLACE */
  bool lazy_rescale;            /* the running maximum may be stale: `raise` updates it, and the step reads the state
                                 * unchanged */
  int max_state;                /* the state that is the maximum */
  ir_ref raise[SPEC_MAX_STATE]; /* the state with reduction 0 applied */
  int prob_term;
  bool has_rescale, mask_by_inf, mask_by_zero;
  ir_ref softcap_limit, softcap_prob; /* the second reads VAR_DOT and VAR_TERM; IR_NONE: none */
  bool prob_is_sigmoid;
  ir_ref tail[2];                 /* the epilogue: O, of VAR_OUT and VAR_STATE; lse */
  ir_ref out_scale, lse;          /* of VAR_STATE; lse IR_NONE: none */
  ir_ref saved[DERIVED_MAX_ROWS]; /* what forward saves of a row: derived.saved */

  /* plan.tangents: the tangents of what is above, IR_NONE where they are 0: of `score` along VAR_SCORE_TANGENT, that of
   * scale * dot, and of the step's, init's and epilogue's expressions. `out` is of out_scale. */
  spec_tangents tangents;
  bool
      max_lags; /* beside tangents: a row may go on with the maximum that it has, `max_state`, while its scores exceed that by
                  * little */
  bool centres; /* to tangents of scores that are all 1, a step's are the step itself: kernels may take a number of the
                 * row off these, and add it times the row at the end */

  /* plan.merges: two parts of a row, of VAR_STATE and VAR_OTHER. */
  bool has_merge;                /* the parts can be merged */
  const char *why_no_merge;      /* or a reason, as an error message says it */
  ir_ref merged[SPEC_MAX_STATE]; /* the state of both parts */
  ir_ref merge_factor;           /* of O of the part whose state is VAR_STATE; of the other's with both exchanged */
  bool merge_weighs;             /* it is not always 1 */

  /* Backward: the derivatives of query_mod, key_mod and value_mod; of lowered_dual_gradient their tangents. */
  const derived_mod *mod_grad[3];

  /* Backward. VAR_ROW[i] in the gradients stands for row[i], of VAR_FINAL, VAR_DELTA, VAR_DLSE. */
  int num_rows;
  ir_ref row[LOWERED_MAX_ROWS];
  derived_terms row_terms;
  ir_ref grad_prob, grad_ds; /* of VAR_DOT, VAR_DP, VAR_ROW and indices */
  /* lowered_dual_gradient: their tangents, along VAR_SCORE_TANGENT and VAR_DP_TANGENT too. Of `row` the second half are then
   * tangents of the first, and terms have tangents for values. */
  ir_ref grad_prob_tangent, grad_ds_tangent;
  ir_ref saved_tangent[DERIVED_MAX_ROWS]; /* of `saved`, of VAR_STATE and VAR_STATE_TANGENT */
  /* lowered_dual_gradient: what an element adds to VAR_PASS, and its tangent, of VAR_DOT, VAR_SCORE_TANGENT and VAR_FINAL:
   * weights of passes, whose factors `row` has, then sums. Of a maximum it is x, -inf where it does not count, and in the
   * tangent's place the key's position. */
  int num_pass_values;
  ir_ref pass_value[DERIVED_MAX_PASSES + DERIVED_MAX_SUMS], pass_tangent[DERIVED_MAX_PASSES + DERIVED_MAX_SUMS];
  derived_terms element_terms; /* without those in `sum` */
  ir_ref whole_sum;            /* of VAR_GRAD, for a term without of_sum */
  derived_terms sum[SUM_KINDS];
  double factor_of_q[DERIVED_MAX_TERMS]; /* SUM_LINEAR: growth of a factor from q to q + 1 */
  int distance_step;                     /* contract/contract.cuh */
  bool pairs_in_row;                     /* likewise, pair_grads_in_rows */
  int pairs_q_axis;                      /* the axis of pair biases that only q indexes; -1: none */
  uint32_t pairs[12];                    /* luattn_input_info.pairs */
  int row_width[3]; /* of query_mod, key_mod, value_mod, where it reads x[..]: channels taken at once */

  /* Slots and called hooks. No nodes are added after hoist_open. */
  uint32_t num_nodes;
  uint8_t *slot_kind; /* per node: 1 + SLOTS_*; 0: no slot. The node's dependence decides which kind */
  uint8_t *cost;      /* per node: rough instructions to compute it */
  slots slot[SLOTS_KINDS];
  bool reads_head_again; /* Head does not hold what an input has for a head */
  int num_acc, num_lane_sums;
  /* The term that element i of Acc sums; and after those, the terms of Acc::lanes. */
  derived_term acc[LOWERED_MAX_ACC + DERIVED_MAX_TERMS];
  int num_hooks;
  hook hook[LOWERED_MAX_HOOKS];
  lowered_facts facts;
  bool failed; /* out of memory */

  /* For the plan and the image. */
  const char *notes; /* lines for the plan's reasons */
  plan_rows rows;
  int outlined_work;  /* instructions of all called hooks, for one copy of each loop */
  compile_work work;  /* the code of hooks */
  bool sums_call_ops; /* hooks of `sum` call their long functions */
  bool crowded;       /* other tiles than the plan's are known to be faster */
  int64_t max_len;    /* the longest lengths for which the arithmetic on positions is exact */
} lowered;

/* Lowers `spec` for the plan. Errors: LUATTN_UNSUPPORTED, LUATTN_NO_MEMORY. */
luattn_status lower_spec(arena *a, const struct luattn_spec *spec, const mask_info *mask, const plan *p, lowered *out,
                         luattn_error *err);

/* ---- queries for emit ---- */

/* Whether a function with parameters `has` (HAS_*) reads r from a slot instead of computing it. */
bool lowered_in_slot(const lowered *f, int has, ir_ref r);
/* Which slots of a kind (SLOTS_ROW or SLOTS_COL) the mask reads, in the arena; NULL: it also reads their position
 * itself. */
const bool *lowered_mask_slots(const lowered *f, int kind);
/* Approximate instructions of the node itself. */
int lowered_op_cost(const lowered *f, ir_ref r);
/* What the body of a function with parameters `has` computes, or reads from slots. NULL: out of memory. */
bool *lowered_needed(const lowered *f, int has, const ir_ref *roots, int n);
/* Whether this function of real numbers is so long that large hooks call it. */
bool lowered_is_long(const lowered *f, ir_ref r);
/* Whether this outlined hook calls such functions. */
bool lowered_calls_ops(const lowered *f, const char *hook);
/* Whether this hook is outlined. */
bool lowered_is_called(const lowered *f, const char *hook);
/* The element of Acc that a term adds to, from num_acc on of Acc::lanes; -1: it goes to memory directly. */
int lowered_acc_of(const lowered *f, const derived_term *t);
/* Values of terms, and indices of those that go to memory: at most LOWERED_MAX_TERM_ROOTS. */
#define LOWERED_MAX_TERM_ROOTS (5 * DERIVED_MAX_TERMS)
int lowered_term_roots(const lowered *f, const derived_terms *terms, ir_ref *roots);
bool lowered_adds_to_memory(const lowered *f, const derived_terms *terms);
/* What a node depends on: DEP_*. */
static inline int lowered_deps(const lowered *f, ir_ref r) { return r == IR_NONE ? 0 : f->deps.mask[r]; }
/* Whether it is constant per head, so that tile_class computes it as a plain value. */
static inline bool lowered_is_point(const lowered *f, ir_ref r) {
  return (lowered_deps(f, r) & ~(DEP_SITE | DEP_MOD)) == 0;
}
/* The slots that are filled when Head, Row and Col are computed. */
extern const int lowered_slot_has[SLOTS_KINDS];
/* The parameters of an outlined hook, for what its roots need, if its caller has parameters `has` (HAS_*):
 * param[node] is PARAM_* or 0. True if it takes LuattnParams as well. need[node]: scratch. */
enum { PARAM_SLOT = 1, PARAM_VARIABLE };
bool lowered_choose_parameters(const lowered *f, int has, const ir_ref *roots, int n, bool *need, uint8_t *param);
/* The hook of reduction k. */
extern const char *const lowered_term_name[SPEC_MAX_RED];
/* The parameters of the hook for sums of a kind. */
extern const int lowered_sum_has[SUM_KINDS];
/* The statistics that cover a gather; -1: none. */
int lowered_stat_of(const lowered *f, const ir_node *n);
/* The sets of the numbers that n compares for equality, in the order of its arguments; false: it compares others. */
bool lowered_sets_of(const lowered *f, const ir_node *n, int stat[2]);
/* The indices of the place that add_distance adds to. */
int lowered_distance_indices(const lowered *f, ir_ref index[4 * DERIVED_MAX_TERMS]);
/* What is bounded over a tile; how many. */
enum { LOWERED_MAX_BOUNDED = 3 + 4 * DERIVED_MAX_TERMS };
int lowered_bounded_roots(const lowered *f, ir_ref root[LOWERED_MAX_BOUNDED]);
/* The nodes whose bounds are needed to bound the roots. NULL: out of memory. */
bool *lowered_bounded_nodes(const lowered *f, const ir_ref *roots, int n);

/* Whether gradients come with their tangents. */
static inline bool lowered_dual_gradient(const lowered *f) {
  return f->plan->pass == LUATTN_BACKWARD && f->plan->tangents != 0;
}

/* P and dS, then their tangents; how many. */
enum { LOWERED_MAX_GRADS = 4 };
static inline int lowered_grads(const lowered *f, ir_ref out[LOWERED_MAX_GRADS]) {
  out[0] = f->grad_prob, out[1] = f->grad_ds, out[2] = f->grad_prob_tangent, out[3] = f->grad_ds_tangent;
  return lowered_dual_gradient(f) ? 4 : 2;
}

/* Whether the kernel's gradient needs this term. */
static inline bool lowered_wants(const lowered *f, const derived_term *t) {
  return (f->plan->wants & (t->input >= 0 ? (unsigned)LUATTN_WANT_INPUTS : (unsigned)LUATTN_WANT_SCALARS)) != 0;
}

#endif
