/* cpu.h: the CPU path's view of one call: arguments converted to double, programs compiled, one lane
 * environment a thread.
 *
 * forward.c and backward.c walk 64 x 64 tiles as a kernel would: empty tiles are skipped, full ones run
 * without the mask. Nothing of size q_len x kv_len is built. The threads of a call share this state, which
 * changes only between the jobs of its crew (crew.h). Each thread has its own cpu_worker.
 */
#ifndef LUATTN_GEN_CPU_H
#define LUATTN_GEN_CPU_H

#include "abi/grid_params.h"
#include "abi/philox.h"
#include "common/fail.h"
#include "common/host.h"
#include "gen/analysis/masks/mask.h"
#include "gen/analysis/specs/int_range.h"
#include "gen/analysis/algebra/split.h"
#include "gen/cpu/crew.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"

#define CPU_TILE IR_LANES
#define CPU_MAX_LEN (1 << 30) /* positions plus a tile fit an int; kernels have the same limit */

/* A DLTensor on the CPU, read and written as double. */
typedef enum view_kind { VIEW_REAL, VIEW_INT, VIEW_BOOL, VIEW_I64, VIEW_I16, VIEW_U8 } view_kind;

typedef struct cpu_view {
  char *data;     /* NULL: absent */
  int code, bits; /* DLPack dtype */
  view_kind kind; /* tells a bool of 8 bits from an integer */
  int ndim;
  int64_t shape[4], stride[4]; /* in elements */
  /* Over a grid the tensor has several axes in place of row_axis, along which an index is the row-major number of a
   * place; its stride above is 0. side NULL: it has not. */
  const struct cpu_side *side;
  int row_axis;
  int64_t step[LUATTN_MAX_AXES];
} cpu_view;

/* The queries or the keys of a grid of several axes. */
typedef struct cpu_side {
  const char *length; /* "q_len", for messages */
  int axes;           /* 1: positions lie along a line */
  const char *const *name;
  int64_t extent[LUATTN_MAX_AXES]; /* -1: not known yet */
} cpu_side;

/* The coordinate along an axis of the place of this row-major number. */
int64_t side_coordinate(const cpu_side *s, int64_t place, int axis);

bool view_is_empty(const cpu_view *v);
double view_get(const cpu_view *v, const int64_t *index); /* of an i64 the nearest double */
int64_t view_get_wide(const cpu_view *v, const int64_t *index);
void view_set(const cpu_view *v, const int64_t *index, double x);

/* x rounded to nearest even in a type, n times. */
void round_all(luattn_dtype type, double *x, int n);

/* The requirements on a tensor. */
typedef struct view_rule {
  const char *name, *axes; /* for messages: "k", "batch, heads_kv, kv_len, head_dim" */
  int ndim;
  int64_t shape[LUATTN_MAX_AXES + 3]; /* -1: any size */
  view_kind kind;
  cpu_side *side; /* that row_axis is of; NULL: none, or along a line. Extents that are not known become those of the
                   * tensor */
  int row_axis;
  bool is_output;  /* elements must not share memory */
  bool shape_only; /* its data does not matter */
} view_rule;

/* The arguments of a CPU call, for host_run. */
typedef struct cpu_call {
  const luattn_spec *spec;
  const luattn_args *args;
  luattn_dtype precision;
  bool coarse, merges;      /* those of cpu_problem */
  int threads;              /* threads_count */
  int first_entry, entries; /* if args are one of `entries` packed sequences: its number; entries 0: args are the whole
                             * batch */
} cpu_call;

/* The number of threads of luattn_cpu_forward and similar functions. */
luattn_status cpu_threads(const luattn_args *args, int *count, luattn_error *err);

luattn_status view_open(const view_rule *rule, const DLTensor *t, cpu_view *out, luattn_error *err);

/* A compiled program. */
typedef struct cpu_program {
  const ir_program *program; /* NULL: no roots */
  const row_tables *rows;    /* of an input mod, or its derivative, that reads x[..]; else NULL */
} cpu_program;

/* The private state of one thread of a call. */
typedef struct cpu_worker {
  void *scratch;           /* of programs */
  ir_bounds *bounds;       /* of the tile classifier */
  ir_lane_block *values;   /* cpu_problem.most_values of them: results of a program with many roots */
  double *row;             /* dim_v numbers: o of a row, or of each pass over one */
  double *given;           /* a row of q, k or v before the input mod */
  double kv_idx[IR_LANES]; /* positions of a tile's kept columns, ascending */
  double exponent;         /* forward.c: the largest so far, of noise */
} cpu_worker;

typedef struct cpu_problem {
  arena *a;
  const luattn_spec *spec;
  ir *g; /* a clone: the spec's own is shared */
  int batch, heads, heads_kv, group, q_len, kv_len, dim, dim_v;
  cpu_side q_side, kv_side; /* of a grid; q_len and kv_len are the products of their extents */
  const luattn_batch *part; /* which part of a whole the tensors are; NULL: they are the whole */
  int head_offset, kv_head_offset, whole_heads, whole_heads_kv;
  int first_entry, entries; /* the first batch entry's number in hooks, and the size of the inputs' batch axis */
  luattn_dtype precision;   /* type that intermediates are rounded to; LUATTN_F64: not rounded */
  bool coarse; /* they are rounded to SCALAR_COARSE_BITS fewer bits than double has; precision is LUATTN_F64 */
  bool merges; /* cpu_forward_merged */
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks) bool name; /* as in luattn_args */
#include "abi/kernel_facts.def"
  bool takes_doubles;     /* scale and scalars need not be values of float32 */
  bool decides_in_double; /* comparisons are those of f64 kernels (gen/ir/decide.c) */
  uint32_t double_inputs; /* bit i: input i holds float64 */
  double scale;
  double scalar[32];
  int keep;              /* dropout: traced_online.keep */
  uint64_t seed, offset; /* of what the spec draws, if anything */
  cpu_view input[12];
  cpu_view input_grad[12];
  cpu_view input_tangent[12];      /* data NULL: it has none */
  cpu_view input_tangent_grad[12]; /* likewise: where the tangent of its gradient goes */
  double scalar_tangent[32];
  uint32_t scalar_tangents; /* bit i: scalar i has one */
  mask_info mask;
  cpu_view q_given, k_given, v_given;
  cpu_program query_mod, key_mod, value_mod;
  double *q, *k, *v;    /* after the input mods, [batch][heads][len][dim]; problem_convert fills them */
  size_t scratch_bytes; /* the most that any program needs */
  int most_values;      /* of the programs whose values go to cpu_worker.values */
  int num_workers;
  cpu_worker *worker;
  crew *crew; /* whose threads are the workers; NULL: the caller's is the only one */
} cpu_problem;

/* Leaves a warning in *err, unless it has one, of values of input i that are beyond what kernels compute with
 * (int_range_warning). The argument has been checked. convert_args.c */
void cpu_warn_of_ints(const luattn_spec *spec, int i, int_range_hooks hooks, const luattn_args *args,
                      luattn_error *err);

/* Rounds intermediates to nearest even, as the call asks. view.c */
void problem_round(const cpu_problem *p, double *x, int n);

/* The longest length of a call. */
static inline int64_t problem_most_len(const cpu_problem *p) {
  const int64_t most = p->spec->traced.most_len;
  return most > 0 && most < CPU_MAX_LEN ? most : CPU_MAX_LEN;
}

/* Checks the arguments (choices_take). */
luattn_status problem_open(const cpu_call *given, bool is_forward, arena *a, cpu_problem *out, luattn_error *err);
/* Opens only what key_mod and value_mod depend on, which are then p->key_mod and p->value_mod; q, k and v have shapes
 * alone. */
luattn_status problem_open_rows(const luattn_spec *spec, const luattn_args *args, arena *a, cpu_problem *p,
                                luattn_error *err);
/* Called after all tensors of the pass have been opened: checks that outputs overlap nothing else. */
luattn_status problem_apart(const cpu_problem *p, const luattn_args *args, bool is_forward, luattn_error *err);
/* Opens only what the mask depends on: the lengths of q and k, scalars, and the inputs that it reads; others
 * may be missing. */
luattn_status problem_open_mask(const luattn_spec *spec, const luattn_args *args, arena *a, cpu_problem *out,
                                luattn_error *err);

/* The row that an input mod's lanes are channels of, from `first` on. */
typedef struct cpu_row {
  const row_tables *tables; /* NULL: nothing reads it */
  int first;
  const double *x, *grad; /* [dim] */
  const double *x_tangent, *grad_tangent;
} cpu_row;

/* What the lanes of one run read. Where an array is NULL, the scalar of the same name holds for all lanes. */
typedef struct cpu_lanes {
  const cpu_problem *p;
  cpu_worker *w; /* of the thread that runs them */
  int b, h;
  double q_idx;
  const double *kv_idx, *pos, *d;
  const double *score, *dp, *x, *grad;
  const double *state, *final, *row, *red, *pass; /* per index, same for all lanes */
  const double *score_tangent, *x_tangent, *state_tangent, *red_tangent;
  const double *dp_tangent, *grad_tangent, *final_tangent, *row_tangent, *pass_tangent;
  double pos0, delta, dlse, out, delta_tangent, dlse_tangent;
  bool of_keys;   /* pos and h are those of keys: a key_mod or value_mod */
  cpu_row row_of; /* in an input mod that reads x[..] */
} cpu_lanes;

/* dropout.c: reads seed and offset, if the spec draws. */
luattn_status problem_open_random(const luattn_args *args, cpu_problem *p, luattn_error *err);
/* Multiplies numbers of a row's kept scores, weights or dP, by 256 / keep, or by 0 if dropout drops the weight. The
 * batch entry, head and row are those of the lanes, the columns kv_idx. */
void dropout_apply(const cpu_lanes *lanes, int count, double *x);

/* call_offsets.c. Call `open` once lengths and heads are known. The amounts added to a tensor's positions
 * (LUATTN_AXIS_Q, _KV) and heads (_H, _HKV) for those of the whole, in batch entry b; 0 for other axes. at: the
 * position in the tensor, in whose chunk it is; one chunk has all positions of a tile.
 * Lengths of the whole. */
luattn_status problem_open_batch(const luattn_args *args, cpu_problem *p, luattn_error *err);
int64_t problem_offset(const cpu_problem *p, int32_t axis, int b, double at);
int64_t problem_length(const cpu_problem *p, int32_t axis, int b);
/* The key of a lane in the whole. */
static inline double lane_key(const cpu_lanes *lanes, int lane) {
  const double at = lanes->kv_idx[lane];
  return at + (double)problem_offset(lanes->p, LUATTN_AXIS_KV, lanes->b, at);
}

luattn_status program_open(cpu_problem *p, const ir_ref *roots, int n, cpu_program *out, luattn_error *err);
/* Converts an index of an expression to the position on an input's axis, for reading it or adding its
 * gradient in a lane. */
int64_t lane_index(const cpu_lanes *c, uint32_t input, int axis, int lane, double x);
void program_run(const cpu_program *p, cpu_lanes *lanes, int count, double *const *out);

/* Replaces REAL roots by their magnitudes (magnitude.c). */
luattn_status magnitude_of(arena *a, ir *g, ir_ref *roots, int n, luattn_error *err);

/* Runs a pass for sequence `entry` of `entries` packed sequences; its tensors are [1, heads, length, dim]. */
luattn_status cpu_forward_entry(const luattn_spec *spec, const luattn_args *args, int entry, int entries,
                                luattn_error *err);
/* The same, and tangents (luattn_cpu_forward_jvp). */
luattn_status cpu_forward_jvp_entry(const luattn_spec *spec, const luattn_args *args, const luattn_tangents *tangents,
                                    int entry, int entries, luattn_error *err);
/* The same with the weights of V [1, heads, q_len, kv_len] (luattn_cpu_weights). */
luattn_status cpu_weights_entry(const luattn_spec *spec, const luattn_args *args, int entry, int entries,
                                const DLTensor *weights, luattn_error *err);
luattn_status cpu_backward_entry(const luattn_spec *spec, const luattn_args *args, int entry, int entries,
                                 luattn_error *err);
/* Tangents of gradients (luattn_cpu_backward_jvp). */
luattn_status cpu_backward_jvp_entry(const luattn_spec *spec, const luattn_args *args, const luattn_tangents *tangents,
                                     int entry, int entries, luattn_error *err);

/* Both passes with intermediates of SCALAR_COARSE_BITS fewer bits than double has; comparisons are those of double. The
 * distance to results in double is CPU_COARSENESS times the error of one computation in double, as long as that is
 * small. */
#define CPU_COARSENESS 0x1p16
luattn_status cpu_forward_coarse(const luattn_spec *spec, const luattn_args *args, luattn_error *err);
luattn_status cpu_backward_coarse(const luattn_spec *spec, const luattn_args *args, luattn_error *err);

/* The same, or in f32, bf16 and f16 luattn_cpu_forward_in and .._backward_in, as kernels order the arithmetic: of hooks
 * that have been simplified first, with the scalars' values, with fused multiply-adds, and of q.k that are off by a unit
 * roundoff of their sum of magnitudes. What simplifying keeps in real arithmetic, rounding may not: of x - 0.1 + 1e-5
 * kernels add -0.09999 to x at once, which float32 has with an error of 4e-4 of 1e-5. */
luattn_status cpu_forward_merged(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision,
                                 luattn_error *err);
luattn_status cpu_backward_merged(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision,
                                  luattn_error *err);

/* The effect of rounding on gradients: replaces each gradient by sqrt(sum of squared magnitudes of its
 * contributions). Independent relative errors r of the contributions change a gradient by about r times this,
 * however much cancels in it. */
luattn_status cpu_gradient_noise(const luattn_spec *spec, const luattn_args *args, luattn_error *err);

/* The effect of rounding where a derivative jumps, as relu's at 0, or is steep, as that of a square root:
 * replaces dq, dk and dv by how far each element may change when every score is off by up to unit * sum |q_d
 * * k_d| * scale. Gradients of inputs and scalars are not touched. *some: whether scores meet any such
 * function; if not, nothing is written. */
luattn_status cpu_gradient_kinks(const luattn_spec *spec, const luattn_args *args, double unit, bool *some,
                                 luattn_error *err);

/* The effect of rounded scores. A score of magnitude |s| is off by up to a unit roundoff of that, and so is
 * the row number lse. Where weights are exponentials of scores, or similar, each has that as a relative
 * error, and so has what it adds to an output or a gradient. Writes sqrt(sum of squares of size *
 * contribution) in place of o, where size is |s|, or of each gradient, where it is sqrt(s^2 + lse^2):
 * independent relative errors r of scores and lse change it by about r times this. *exponent, which may be
 * NULL: the largest mean of |s| over a row's weights, which scales the error of row sums of weights. All
 * results are 0 if weights are only products and powers of scores, which do not amplify relative errors.
 * `args` of backward have forward's own o, lse and saved. */
luattn_status cpu_forward_score_noise(const luattn_spec *spec, const luattn_args *args, double *exponent,
                                      luattn_error *err);
luattn_status cpu_backward_score_noise(const luattn_spec *spec, const luattn_args *args, luattn_error *err);
/* Whether weights are exponentials of scores, or similar. */
bool cpu_magnifies_scores(const luattn_spec *spec);

#define CPU_Q_AXES "batch, heads, q_len, head_dim"
#define CPU_K_AXES "batch, heads_kv, kv_len, head_dim"
#define CPU_V_AXES "batch, heads_kv, kv_len, head_dim_v"
#define CPU_ROW_AXES "batch, heads, q_len"
#define CPU_O_AXES CPU_ROW_AXES ", head_dim_v"
#define CPU_SAVED_AXES "num_saved, " CPU_ROW_AXES

/* The error for a tensor `name` that is given though the online function has no lse. */
luattn_status refuse_lse(const luattn_spec *spec, const char *name, luattn_error *err);

/* Called after all programs of the pass have been opened: makes workers, and starts their threads, at most
 * `threads` including the caller's: fewer if there is little to do, or if the system starts no more. */
luattn_status problem_start(cpu_problem *p, int threads, luattn_error *err);
void problem_stop(cpu_problem *p); /* joins the threads; p need not have been started */
/* Runs units [0, count) of a job on all workers; returns once all are done. */
void problem_run(const cpu_problem *p, crew_job *job, void *user, int64_t count);
/* x[0..count) = 0. */
void problem_zero(const cpu_problem *p, double *x, int64_t count);
/* Finds the tangents of inputs and scalars by name: convert_args.c. */
luattn_status problem_open_tangents(const luattn_tangents *given, bool is_forward, cpu_problem *p, luattn_error *err);
/* Fills q, k and v. */
void problem_convert(cpu_problem *p);
/* Applies an input mod to row i of head h of entry b, in place. of_keys: h is a head of keys. */
void problem_modify_row(const cpu_problem *p, cpu_worker *w, const cpu_program *mod, int dim, bool of_keys, int b,
                        int h, int i, double *row);
/* Converts a tensor [batch][heads][len][dim] to doubles, through its input mod. */
void problem_convert_one(cpu_problem *p, const cpu_view *from, const cpu_program *mod, double *to);

/* Where the rules of q and o, and of k and v, have their rows, for view_rule; no side along a line. */
#define Q_ROWS(p, axis) .side = (p)->q_side.axes > 1 ? &(p)->q_side : NULL, .row_axis = (axis)
#define KV_ROWS(p, axis) .side = (p)->kv_side.axes > 1 ? &(p)->kv_side : NULL, .row_axis = (axis)

/* Class of the tile [q0, q1] x [kv0, kv1], which lies inside the lengths: 0 empty, 1 partial, 2 full. */
int problem_tile_class(const cpu_problem *p, const cpu_worker *w, int b, int h, int q0, int q1, int kv0, int kv1);

/* Index of element (b, h, i, 0) of a contiguous [batch][heads][len][dim] array. */
static inline size_t cpu_at(int heads, int len, int dim, int b, int h, int i) {
  return (((size_t)b * (size_t)heads + (size_t)h) * (size_t)len + (size_t)i) * (size_t)dim;
}

#endif
