/* spec.h: a spec after its Lua file was run and traced: names, declarations and expressions. Immutable from
 * then on.
 *
 * lua/ builds a `traced`, analysis/ adds `derived`; plan/, emit/ and cpu/ read both. Everything lives in one
 * arena.
 */
#ifndef LUATTN_GEN_SPEC_H
#define LUATTN_GEN_SPEC_H

#include "common/call/scalar_range.h"
#include "gen/ir/ir.h"
#include "luattn/compiler.h"

#define SPEC_MAX_STATE 8  /* online_rowscales */
#define SPEC_MAX_FINAL 8  /* final_rowscales */
#define SPEC_MAX_RED 8    /* reduce_sum and reduce_max in one online_fwd */
#define SPEC_KEEP_ALL 256 /* traced_online.keep without dropout */

/* online_fwd: one step. IR_REDUCE_SUM/IR_REDUCE_MAX nodes inside `prob`, `rescale` and `next` reduce over the step's
 * kept scores; VAR_SCORE is the element, VAR_STATE the state before the step. */
typedef struct traced_online {
  const char *name; /* of the function table, for messages */
  int num_state;
  const char *state_name[SPEC_MAX_STATE];
  ir_ref init[SPEC_MAX_STATE]; /* uniform expressions of b, h, scalars, inputs */
  ir_ref prob;
  ir_ref rescale; /* the factor of O; constant 1 if O is not rescaled */
  ir_ref next[SPEC_MAX_STATE];
  ir_ref out; /* epilogue: linear in VAR_OUT; of VAR_STATE */
  int num_final;
  const char *final_name[SPEC_MAX_FINAL];
  ir_ref final[SPEC_MAX_FINAL]; /* of VAR_STATE; the one named "lse" is the public lse */
  int lse;                      /* index of "lse" in final, or -1 */
  ir_ref forward;               /* recomputes prob from VAR_SCORE and VAR_FINAL; IR_NONE if left out */
  int keep;                     /* dropout: a weight is kept with probability keep / 256 (abi/philox.h) */
  ir_ref backward; /* d loss / d VAR_SCORE from VAR_DP, VAR_P, VAR_DELTA, VAR_FINAL, VAR_SCORE; IR_NONE: derive it */
} traced_online;

#define SPEC_MAX_READS 8 /* x[..] in all input mods of a spec, each index once */

/* Where an input mod's VAR_READ, VAR_READ_GRAD and VAR_CHANNEL of an index lie, seen from channel d: at
 * channel[index][d]. Each is a permutation of the row's channels, and none is the identity. */
#define ROW_MAX_TABLES 24
typedef struct row_tables {
  int count, dim;
  uint16_t *channel[ROW_MAX_TABLES];
} row_tables;

/* Axis `axis` of input `input`, which is q, kv, h or hkv. */
enum { SPEC_MAX_ELSEWHERE = 48 };
typedef struct spec_elsewhere {
  uint8_t input, axis;
} spec_elsewhere;

/* linear_attention {..}: hooks of a value head's token, beside query_mod, key_mod and value_mod of traced_spec. They read
 * VAR_B, VAR_H (a value head; in query_mod and key_mod one of q), VAR_POS, VAR_D and, but for decay and write, VAR_X:
 * the element of q, k or v, in read and erase of k behind key_mod, in skip of v before value_mod. IR_REDUCE_SUM sums over
 * the row's channels, one level (analysis/linear/channel_sums.h). IR_NONE: left out. */
typedef struct traced_linear {
  ir_ref decay;       /* its logarithm, of channels of k */
  ir_ref write;       /* a factor of v, of its channels */
  ir_ref read, erase; /* r; e, which is k if it is left out */
  ir_ref skip;        /* what o gets besides */
  bool before;        /* r reads the state before the decay */
  bool normalize;     /* o is divided by that of a channel of v that is always 1 */
  double scale;       /* of calls that give none; 0: head_dim^-1/2 */
} traced_linear;

typedef struct traced_spec {
  arena *a;
  ir *g;
  luattn_form form; /* attention's members are score_mod, block_mask, online, reads and grids; linear attention's are
                     * `linear`; the others are of both */
  const char *file; /* as shown in messages */
  const char *name;
  int grid_axes; /* of `grid`; 0: it has none, and positions are numbers. Of one axis they lie along a line as well */
  const char *grid_axis[LUATTN_MAX_AXES];
  int least_extent
      [LUATTN_MAX_AXES]; /* places of keys along an axis that the block_mask needs, and by what, for messages;
                                      * 0: any number */
  const char *least_extent_of[LUATTN_MAX_AXES];
  int num_inputs;
  luattn_input_info input[12];
  const char *axis_name[12 * 4]; /* luattn_spec_info.axis_names */
  int num_scalars;
  const char *scalar_name[32]; /* sorted */
  double scalar_default[32];
  scalar_range scalar_range[32]; /* what functions of the library take it for */
  int num_ranges;
  ir_ref score_mod;                     /* of VAR_SCORE, VAR_B, VAR_H, VAR_Q, VAR_KV, ..; VAR_SCORE itself if none */
  ir_ref block_mask;                    /* BOOL; IR_NONE: everything is kept */
  ir_ref query_mod, key_mod, value_mod; /* of VAR_X, VAR_B, VAR_H, VAR_POS, VAR_D; IR_NONE if none */
  /* x[..] in these. VAR_READ of index i is the element at read[i], of VAR_D and the head dim, until
   * analysis/specs/mod_rows.c knows that: then it is the one at table i of rows (NULL: a mod of one element), of
   * query_mod, key_mod, value_mod. */
  int num_reads;
  ir_ref read[SPEC_MAX_READS];
  int read_line[SPEC_MAX_READS];
  const row_tables *rows[3];
  /* Of a compilation with luattn_target.keys_modified: what key_mod and value_mod were, which are then IR_NONE: with
   * pages luattn_append applies these, which read append_inputs (a bit each). */
  ir_ref append_mod[2];
  unsigned append_inputs;
  traced_online online;
  traced_linear linear;
  bool random;    /* a hook calls random() */
  bool by_passes; /* backward takes a row pass wherever it can, for tests and for measuring: LUATTN_ROW_PASSES=1 */
  /* i32 inputs (a bit each) that the mask, and all hooks, compute with, by how far apart their values are:
   * analysis/specs/int_range.c. */
  uint16_t inexact_ints[2][3];
  int num_elsewhere; /* axes of inputs that are read at another place than their own: analysis/specs/reads_elsewhere.c
                      */
  spec_elsewhere elsewhere[SPEC_MAX_ELSEWHERE];
  int64_t most_len; /* positions of longer sequences lie outside of the grid of the block_mask (neighborhood's size); 0:
                       no limit */
} traced_spec;

/* Whether calls draw random numbers, for dropout or for hooks. */
static inline bool spec_draws(const traced_spec *t) { return t->random || t->online.keep != SPEC_KEEP_ALL; }

/* Whether q, k or v has a mod. */
static inline bool spec_has_mods(const traced_spec *t) {
  return t->query_mod != IR_NONE || t->key_mod != IR_NONE || t->value_mod != IR_NONE;
}

/* One gradient contribution to an input or a scalar: `value` is added at `index` (inputs) for each element or
 * row. Where value = factor * ds with a factor of positions only, `factor` is that; otherwise IR_NONE. The
 * emitter may defer a part: of_sum, of VAR_GRAD, is what a sum of values adds; IR_NONE: the sum itself. by_lane: a
 * warp sums it for each element, not each thread (lower/accumulators.c). */
typedef struct derived_term {
  int input; /* input number, or -1: scalar number `scalar` */
  int scalar;
  int num_index;
  ir_ref index[4];
  ir_ref value, factor, of_sum;
  bool by_lane;
} derived_term;

#define DERIVED_MAX_ROWS 16
#define DERIVED_MAX_TERMS 256 /* of a hook; the time to compile them bounds those of a kernel */

typedef struct derived_terms {
  int count;
  derived_term term[DERIVED_MAX_TERMS];
} derived_terms;

/* Derivative of one input mod: dx of VAR_X, VAR_GRAD, .., and its parameter terms. Until the head dim is known, dx
 * lacks what comes from channels that read this one: by_read[i] is what goes to the element at traced_spec.read[i]. */
typedef struct derived_mod {
  ir_ref dx;
  derived_terms terms;
  ir_ref by_read[SPEC_MAX_READS];
} derived_mod;

#define DERIVED_MAX_PASSES 2
#define DERIVED_MAX_SUMS 8

/* A row pass: forward with another weight. With O_k = factor * sum over kept j of weight_j v_j, VAR_PASS[k] = rowsum(dO
 * * O_k). Dropout drops what forward's drops. */
typedef struct derived_pass {
  ir_ref weight; /* of VAR_SCORE (after score_mod), VAR_FINAL as derived_spec.row reads it, leaves; never NaN where a
                    score is -inf */
  ir_ref factor; /* of VAR_FINAL, leaves of the row, and the sums among VAR_PASS */
} derived_pass;

/* A number of the row that pass 0 makes beside its O, of the row's kept elements.
 *
 * The derivative of a maximum goes to elements that are it. Kernels round a score in more ways than one, so that none
 * of them compares its scores with what another has found to be the largest. Where the first takes all of it,
 * PASS_PLACE is its position. Where several are the largest in all bits, and what comes next is further below than the
 * part MAXIMUM_GAP of 1 + |m|, all that are at least PASS_LEAST share it, which lies between, and PASS_PLACE is minus
 * their number. Otherwise each is +inf: of a row that keeps nothing, or whose maximum is the number that it started at.
 */
#define MAXIMUM_GAP 0x1p-6
typedef enum derived_kind {
  PASS_SUM,   /* the sum of x */
  PASS_PLACE, /* of the maximum of x, */
  PASS_LEAST  /* right after it, where x is the number that the row's maximum starts at, and is not below */
} derived_kind;
typedef struct derived_sum {
  derived_kind kind;
  ir_ref of; /* x, of the variables of a weight */
} derived_sum;

/* What backward needs, separated by where it is computed. */
typedef struct derived_spec {
  /* The error message that explains why the spec has no backward, and how to change it; NULL if it has one.
   * Otherwise nothing is saved, and the expressions below are 0 or absent. */
  const char *missing;
  /* Forward saves final `save[i]` (beyond lse): expressions of VAR_STATE. */
  int num_saved;
  ir_ref saved[DERIVED_MAX_ROWS];
  bool reads_lse;        /* a row below reads lse */
  uint32_t stabilisers;  /* a bit for each state that is made of a maximum and drops out of the function's derivative */
  bool has_large_scores; /* the last two of them are the maximum and log l: large_scores.c */
  /* Row passes, before prepare: VAR_PASS[k] of pass k, then VAR_PASS[num_passes + i] = sum[i]. Sums come with a pass:
   * its weight may be 0. */
  int num_passes;
  derived_pass pass[DERIVED_MAX_PASSES];
  int num_sums;
  derived_sum sum[DERIVED_MAX_SUMS];
  /* Per row, in prepare: of VAR_FINAL, which counts lse (if there is one) and then saved[0], saved[1], ..; VAR_DELTA,
   * VAR_DLSE, VAR_PASS and row-level leaves. VAR_ROW[i] in the element expressions stands for row[i]. */
  int num_rows;
  ir_ref row[DERIVED_MAX_ROWS];
  derived_terms row_terms; /* parameter gradients that arise per row (sinks) */
  /* Per kept element, of VAR_SCORE (after score_mod), VAR_ROW, VAR_DP: */
  ir_ref prob;                 /* of t = VAR_SCORE = scale * dot (score_mod is inside) */
  ir_ref ds;                   /* d loss / d t */
  derived_terms element_terms; /* parameter gradients of score_mod */
  derived_mod query_mod, key_mod, value_mod;
  const char *how; /* where the online backward comes from: "derived", "given by the spec", .. for `luattn
                    * emit --stage grad` */
} derived_spec;

/* How finished parts of a row merge (luattn_spec_parts): expressions of VAR_STATE, the numbers that forward has saved
 * of the one part, and VAR_OTHER, those of the other. The first num_state are the state of the online function; the
 * rest is what these expressions read besides, the same in every part, such as a sink. */
typedef struct part_rule {
  int num_rows, num_state;
  bool whole_rows;              /* the function's backward takes a row pass, so that parts have none */
  ir_ref state[SPEC_MAX_STATE]; /* of both parts */
  ir_ref factor, other_factor;  /* of the parts' sums of prob * v */
  ir_ref scale;                 /* what makes O of such a sum */
  ir_ref lse; /* IR_NONE: the online function has none, and a part's lse is 0 where it keeps something */
  int num_saved;
  ir_ref saved[DERIVED_MAX_ROWS]; /* what backward reads of the whole row: derived_spec.saved */
} part_rule;

struct luattn_spec {
  arena *a;
  traced_spec traced;
  derived_spec derived;                /* of attention */
  const struct derived_linear *linear; /* of linear attention: analysis/linear/linear_adjoint.h; else NULL */
  /* Of a compilation, once its mask is analysed: it is evaluated for cells (mask_evaluated), what it reads differs
   * between blocks of queries, and its own blocks have as many keys as a cell; and it compares data of which blocks' minima
   * and maxima tell tiles apart, as documents. */
  bool by_cells, by_query_blocks, by_narrow_blocks, by_block_bounds;
  bool
      learns_displacements; /* an input's gradient is a sum over scores with the same kv - q along each axis of a grid */
  int step[LUATTN_MAX_AXES]; /* of boxes along axes of a grid, those that it has the last ones (mask_axis); 0: 1 */
  double load_ms;
  uint64_t hash[2];       /* luattn_spec_info.hash */
  uint64_t whole_hash[2]; /* of a spec of parts: that of the spec that it was made of */
  const part_rule *parts; /* of a spec that luattn_spec_parts made; else NULL */
};

/* Makes `spec`, which drops no weights, the spec whose online function is dropout() of what it was: of 256 weights,
 * `keep` are kept. Its hash becomes another. 256: nothing changes. Only whoever loaded it may know it by now.
 * load_spec.c */
luattn_status spec_drop_weights(luattn_spec *spec, int keep, luattn_error *err);

#endif
