/* form.h: a spec as a kernel runs it: every expression that spec.cuh prints, folded, with the choices of the
 * contract made.
 *
 * form.c takes the traced and derived spec apart and chooses the unit of the stored score, the reductions and
 * what is deferred; claims.c tries what a masked or bounded score makes needless; fold.c rewrites expressions
 * into the shapes that are cheap on a device; deps.c says what depends on what. Everything is built in
 * spec->traced.g, which must be the caller's own clone.
 */
#ifndef LUATTN_GEN_FORM_H
#define LUATTN_GEN_FORM_H

#include "gen/analysis/split.h"
#include "gen/emit/emit.h"

/* What an expression depends on. SITE: anything fixed for one (b, h): scalars, lengths, gathers, the scale.
 */
enum {
  DEP_SITE = 1,
  DEP_Q = 2,       /* query position */
  DEP_KV = 4,      /* key position */
  DEP_ELEMENT = 8, /* dot, score, dO.v */
  DEP_STEP = 16,   /* online state, reductions: one value per row and step */
  DEP_ROW = 32,    /* numbers of a backward row */
  DEP_MOD = 64,    /* element, position, channel and gradient of an input mod; bounds of a tile */
  DEP_PART = 128 /* base or offset of a position; never in a slot: the compiler sees more where it is used */
};

/* Indices of VAR_PART. */
enum { PART_Q_BASE, PART_Q_OFFSET, PART_KV_BASE, PART_KV_OFFSET };

typedef struct deps {
  const ir *g;
  arena *a;
  uint8_t *mask;
  uint32_t count, capacity;
} deps;
void deps_open(deps *d, arena *a, const ir *g);
int deps_of(deps *d, ir_ref r); /* also of nodes built since; 0 for IR_NONE */

/* One value per element of a tile: not shared by the elements of a row, of a column or of a head. */
static inline bool deps_element(int mask) {
  const int row = DEP_Q | DEP_STEP | DEP_ROW;
  return (mask & (DEP_ELEMENT | DEP_MOD | DEP_PART)) != 0 || ((mask & DEP_KV) != 0 && (mask & row) != 0);
}

/* Gradients of parameters that are sums of dS, by what they are sums over; as contract/contract.cuh has it. VAR_GRAD
 * stands for the sum. */
enum { SUM_DISTANCE, SUM_ROW, SUM_COL, SUM_HERE, SUM_LINEAR, SUM_KINDS };

typedef struct emit_form {
  arena *a;
  ir *g;
  deps deps;
  const struct luattn_spec *spec;
  const mask_info *mask;
  const plan *plan;

  bool dot_unit;  /* score() gives score / scale, and the online function multiplies */
  bool step_unit; /* score() gives what the online function would make of it first, a * score + b */
  bool bounded;   /* scores lie within score_lo and score_hi, and no maximum is kept */
  double score_lo, score_hi;
  bool lags;   /* the maximum lags behind: `raise` takes it in, the step is that of the state as it is */
  int lagging; /* the state that it is */
  ir_ref raise[SPEC_MAX_STATE]; /* the state with reduction 0 taken in */
  ir_ref score;                 /* of VAR_DOT and indices */
  ir_ref distance_term;         /* distance.c; IR_NONE: none */
  ir_ref line;                  /* the load of an input along kv, likewise; IR_NONE: none. sm90 */
  ir_ref line_index[4];
  int num_line_index, line_pitched; /* the axis that q alone is the index of; -1: q is in others, too */
  ir_ref score_with;                /* the score, of VAR_TERM in the place of either; IR_NONE in backward */
  ir_ref shift; /* what `score` lacks, of parts of positions; IR_NONE: nothing. See shift.c */
  bool red_shifted[SPEC_MAX_RED]; /* a maximum of scores: the kernel adds the shift to it */
  ir_ref score_bounds; /* of VAR_SCORE and indices: what is bounded; IR_NONE: nothing. See reach.c */
  ir_ref keep;         /* IR_NONE: no mask */
  online_split step;   /* of VAR_SCORE as stored */
  ir_ref init[SPEC_MAX_STATE];
  bool red_deferred[SPEC_MAX_RED], state_deferred[SPEC_MAX_STATE];
  int prob_term;
  bool has_rescale, mask_by_inf, mask_by_zero;
  ir_ref small_limit, small_weight; /* the second of VAR_DOT and VAR_TERM; IR_NONE: none. See small.c */
  bool prob_is_sigmoid;             /* see small.c */
  ir_ref tail[2];                   /* the epilogue: O, of VAR_OUT and VAR_STATE; lse */
  ir_ref out_scale, lse;            /* of VAR_STATE; lse IR_NONE: none */

  int num_rows; /* VAR_ROW[i] in the gradients stands for row[i], of VAR_FINAL, VAR_DELTA, VAR_DLSE */
  ir_ref row[DERIVED_MAX_ROWS];
  derived_terms row_terms;
  ir_ref grad_prob, grad_ds;   /* of VAR_DOT, VAR_DP, VAR_ROW and indices */
  derived_terms element_terms; /* without those in `sum` */
  ir_ref whole_sum;            /* VAR_GRAD, of a term without of_sum */
  derived_terms sum[SUM_KINDS];
  double
      factor_of_q[DERIVED_MAX_TERMS]; /* of terms of SUM_LINEAR: what their factor grows by from q to q + 1 */
  int distance_step;                  /* contract/contract.cuh */
  bool pairs_in_line;                 /* likewise */
  int pairs_axis;                     /* theirs that q alone is the index of; -1: none */
  uint32_t pairs[12];                 /* luattn_input_info.pairs */
  bool positions_in_real; /* positions were converted before they were combined: exact below 2^24 in float */
} emit_form;

luattn_status form_build(arena *a, const struct luattn_spec *spec, const mask_info *mask, const plan *p,
                         emit_form *out, luattn_error *err);

/* Write `distance_term` or `line`, and `score_with` or `roots`, what grad computes, with VAR_TERM in its
 * place. */
void distance_take(emit_form *f);
void distance_take_gradient(emit_form *f, ir_ref *roots, int n);
void line_take(emit_form *f);
void line_take_gradient(emit_form *f, ir_ref *roots, int n);
/* Of an input read at these indices: the axis of q whose index q is itself, where no other moves with q; -1:
 * there is none. */
int line_pitched_axis(emit_form *f, int input, const ir_ref *index, int num_index);

/* claims.c. Leaves the step as it is, or takes its maximum away and writes `bounded` and `tail`. */
luattn_status claims_bounded_scores(emit_form *f, luattn_error *err);
luattn_status claims_lagging_maximum(emit_form *f, luattn_error *err); /* writes `lags` and `lagging` */
/* Is it a softmax, whose weights, small enough, may be left out of both passes? Before a maximum is taken
 * away. */
luattn_status claims_softmax(emit_form *f, bool *hold, luattn_error *err);
luattn_status claims_mask_by_inf(emit_form *f, bool *hold, luattn_error *err);
luattn_status claims_mask_by_zero(emit_form *f, bool *hold, luattn_error *err);

/* fold.c: exp and log in base 2, linear combinations as chains of multiply-adds with everything uniform in
 * one coefficient. */
void fold_roots(emit_form *f, ir_ref *roots, int n);
/* If r = x + rest with `rest` free of x, writes rest (IR_NONE: zero). */
bool fold_is_shift(emit_form *f, ir_ref r, ir_ref x, ir_ref *rest);

/* Folds a score and takes from it what is the same for all elements that a thread has of one row in a tile.
 * IR_NONE: nothing is, and the score is as it was. */
ir_ref fold_shift(emit_form *f, ir_ref *score);

luattn_status reach_choose(emit_form *f, luattn_error *err); /* reach.c; writes `score_bounds` */

/* small.c: how to tell that dots are small, and weights of such; whether weights are sigmoids. */
void small_choose(emit_form *f);

/* shift.c: `score` without what is the same for a row in a tile, which the online function gets by itself. */
ir_ref shift_source(const emit_form *f); /* the score_mod to start from */
void shift_score(emit_form *f);
void shift_step(emit_form *f);

/* uniform.c: element_terms without factors and conditions that a head's elements share. */
void uniform_take(emit_form *f);

/* A place that is the same for the whole head: the block sums what goes there, and adds it once. */
static inline bool form_has_one_place(emit_form *f, const derived_term *t) {
  for (int i = 0; i < t->num_index; i++)
    if ((deps_of(&f->deps, t->index[i]) & ~DEP_SITE) != 0) return false;
  return true;
}

/* Does the kernel's gradient want this term? */
static inline bool form_wants(const emit_form *f, const derived_term *t) {
  return (f->plan->wants & (t->input >= 0 ? (unsigned)LUATTN_WANT_INPUTS : (unsigned)LUATTN_WANT_SCALARS)) !=
         0;
}

#endif
