/* lane_values.c: supplies variables and gathers to a program that runs over the lanes of a tile row. */
#include <math.h>
#include <string.h>

#include "gen/analysis/specs/spec_tangents.h"
#include "gen/cpu/cpu.h"

/* Fills from one value a lane; NULL: all lanes have the same. */
static const double *lane_values(const cpu_lanes *c, ir_var v) {
  switch (v) {
    case VAR_SCORE:
      return c->score;
    case VAR_KV:
      return c->kv_idx;
    case VAR_X:
      return c->x;
    case VAR_POS:
      return c->pos;
    case VAR_D:
      return c->d;
    case VAR_DP:
      return c->dp;
    case VAR_GRAD:
      return c->grad;
    case VAR_SCORE_TANGENT:
      return c->score_tangent;
    case VAR_X_TANGENT:
      return c->x_tangent;
    case VAR_DP_TANGENT:
      return c->dp_tangent;
    case VAR_GRAD_TANGENT:
      return c->grad_tangent;
    default:
      return NULL;
  }
}

/* The offset of a position or a head in the whole. at: the position in the tensor. */
static int64_t offset_of(const cpu_lanes *c, ir_var v, double at) {
  switch (v) {
    case VAR_H:
      return problem_offset(c->p, c->of_keys ? LUATTN_AXIS_HKV : LUATTN_AXIS_H, c->b, 0);
    case VAR_Q:
      return problem_offset(c->p, LUATTN_AXIS_Q, c->b, at);
    case VAR_KV:
      return problem_offset(c->p, LUATTN_AXIS_KV, c->b, at);
    case VAR_POS:
      return problem_offset(c->p, c->of_keys ? LUATTN_AXIS_KV : LUATTN_AXIS_Q, c->b, at);
    default:
      return 0;
  }
}

/* Numbers of the row whose scores are computed. */
static double row_number(const cpu_lanes *c, ir_var v, uint32_t index) {
  switch (v) {
    case VAR_STATE:
      return c->state[index];
    case VAR_OUT:
      return c->out;
    case VAR_FINAL:
      return c->final[index];
    case VAR_DELTA:
      return c->delta;
    case VAR_DLSE:
      return c->dlse;
    case VAR_PASS:
      return c->pass[index];
    case VAR_ROW:
      return c->row[index];
    case VAR_STATE_TANGENT:
      return c->state_tangent[index];
    case VAR_RED_TANGENT:
      return c->red_tangent[index];
    case VAR_FINAL_TANGENT:
      return c->final_tangent[index];
    case VAR_ROW_TANGENT:
      return c->row_tangent[index];
    case VAR_PASS_TANGENT:
      return c->pass_tangent[index];
    case VAR_DELTA_TANGENT:
      return c->delta_tangent;
    case VAR_DLSE_TANGENT:
      return c->dlse_tangent;
    default:
      return c->red[index];
  }
}

static bool is_row_number(ir_var v) {
  return v == VAR_STATE || v == VAR_OUT || v == VAR_FINAL || v == VAR_DELTA || v == VAR_DLSE || v == VAR_PASS ||
         v == VAR_ROW || v == VAR_RED || v == VAR_STATE_TANGENT || v == VAR_RED_TANGENT || v == VAR_FINAL_TANGENT ||
         v == VAR_ROW_TANGENT || v == VAR_DELTA_TANGENT || v == VAR_DLSE_TANGENT || v == VAR_PASS_TANGENT;
}

/* Fills all lanes. A NaN exposes variables that should not be left after analysis. */
static double shared_value(const cpu_lanes *c, ir_var v, uint32_t index) {
  const cpu_problem *p = c->p;
  if (is_row_number(v)) return row_number(c, v, index);
  switch (v) {
    case VAR_B:
      return c->b + p->first_entry;
    case VAR_H:
      return c->h + (double)offset_of(c, v, 0);
    case VAR_Q:
      return c->q_idx + (double)offset_of(c, v, c->q_idx);
    case VAR_Q_LEN:
      return (double)problem_length(p, LUATTN_AXIS_Q, c->b);
    case VAR_KV_LEN:
      return (double)problem_length(p, LUATTN_AXIS_KV, c->b);
    case VAR_HEADS:
      return p->whole_heads;
    case VAR_HEADS_KV:
      return p->whole_heads_kv;
    case VAR_SCALAR:
      return p->scalar[index];
    case VAR_SCALAR_TANGENT:
      return p->scalar_tangent[index];
    case VAR_POS:
      return c->pos0 + (double)offset_of(c, v, c->pos0);
    case VAR_SCALE:
      return p->scale;
    case VAR_SCORE:
    case VAR_KV:
    case VAR_X:
    case VAR_D:
    case VAR_DP:
    case VAR_GRAD:
    case VAR_READ:
    case VAR_READ_GRAD:
    case VAR_CHANNEL:
    case VAR_SCORE_TANGENT:
    case VAR_X_TANGENT:
    case VAR_READ_TANGENT:
    case VAR_DP_TANGENT:
    case VAR_GRAD_TANGENT:
    case VAR_READ_GRAD_TANGENT:
      return 0; /* the caller of the program fills these */
    default:
      break;
  }
  return NAN;
}

/* Fills VAR_READ and similar variables of an input mod from other channels of the row. */
static void row_values(const cpu_row *row, ir_var v, uint32_t index, int lanes, double *out) {
  const uint16_t *channel = row->tables->channel[index] + row->first;
  const double *from = v == VAR_READ                ? row->x
                       : v == VAR_READ_TANGENT      ? row->x_tangent
                       : v == VAR_READ_GRAD_TANGENT ? row->grad_tangent
                                                    : row->grad;
  for (int i = 0; i < lanes; i++) out[i] = v == VAR_CHANNEL ? channel[i] : from[channel[i]];
}

/* Fills a coordinate or an extent of a grid. */
static void place_values(const cpu_lanes *c, ir_var v, int axis, int lanes, double *out) {
  const bool is_key = v == VAR_KV || v == VAR_KV_LEN || (v == VAR_POS && c->of_keys);
  const cpu_side *side = is_key ? &c->p->kv_side : &c->p->q_side;
  const double *places = lane_values(c, v);
  const double place = v == VAR_Q ? c->q_idx : v == VAR_POS ? c->pos0 : 0;
  for (int i = 0; i < lanes; i++)
    out[i] = v == VAR_Q_LEN || v == VAR_KV_LEN
                 ? (double)side->extent[axis]
                 : (double)side_coordinate(side, (int64_t)(places != NULL ? places[i] : place), axis);
}

static void lane_variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  const cpu_lanes *c = user;
  const bool is_place = v == VAR_Q || v == VAR_KV || v == VAR_POS || v == VAR_Q_LEN || v == VAR_KV_LEN;
  if (is_place && c->p->q_side.axes > 1) {
    place_values(c, v, (int)index, lanes, out);
    return;
  }
  if (v == VAR_READ || v == VAR_READ_GRAD || v == VAR_READ_TANGENT || v == VAR_READ_GRAD_TANGENT || v == VAR_CHANNEL) {
    row_values(&c->row_of, v, index, lanes, out);
    return;
  }
  const double *values = lane_values(c, v), same = values == NULL ? shared_value(c, v, index) : 0;
  const bool is_part = values != NULL && c->p->part != NULL;
  for (int i = 0; i < lanes; i++) {
    out[i] = values != NULL ? values[i] : same;
    if (is_part) out[i] += (double)offset_of(c, v, values[i]);
  }
}

/* Where a lane is along an axis of the tensors. Those of an input mod have a row. */
static double lane_at(const cpu_lanes *c, int32_t axis, int lane) {
  if (c->x != NULL) return c->pos0;
  return axis == LUATTN_AXIS_Q ? c->q_idx : c->kv_idx != NULL ? c->kv_idx[lane] : 0;
}

int64_t lane_index(const cpu_lanes *c, uint32_t input, int axis, int lane, double x) {
  const int64_t size = c->p->input[input].shape[axis];
  const int32_t of = c->p->spec->traced.input[input].axis[axis];
  if (c->p->part != NULL) x -= (double)problem_offset(c->p, of, c->b, lane_at(c, of, lane));
  if (!(x > 0)) return 0;
  return x >= (double)(size - 1) ? size - 1 : (int64_t)x;
}

/* Where lane i reads an input. */
static void lane_place(const cpu_lanes *c, uint32_t input, int n_index, const double *const *index, int i,
                       int64_t at[4]) {
  memset(at, 0, 4 * sizeof *at);
  for (int j = 0; j < n_index; j++) at[j] = lane_index(c, input, j, i, index[j][i]);
}

static void lane_load(void *user, uint32_t number, int n_index, const double *const *index, int lanes, double *out) {
  const cpu_lanes *c = user;
  const bool of_tangent = number >= SPEC_INPUT_TANGENT;
  const uint32_t input = of_tangent ? number - SPEC_INPUT_TANGENT : number;
  const cpu_view *t = of_tangent ? &c->p->input_tangent[input] : &c->p->input[input];
  const bool empty = view_is_empty(t); /* a row gathers even where there are no keys: it reads 0 */
  int64_t at[4];
  for (int i = 0; i < lanes; i++) {
    if (!empty) lane_place(c, input, n_index, index, i, at);
    out[i] = empty ? 0 : view_get(t, at);
  }
}

static void lane_load_wide(void *user, uint32_t input, int n_index, const double *const *index, int lanes,
                           int64_t *out) {
  const cpu_lanes *c = user;
  const cpu_view *t = &c->p->input[input];
  const bool empty = view_is_empty(t);
  int64_t at[4];
  for (int i = 0; i < lanes; i++) {
    if (!empty) lane_place(c, input, n_index, index, i, at);
    out[i] = empty ? 0 : view_get_wide(t, at);
  }
}

static void lane_random(void *user, const double *const at[4], int lanes, double *out) {
  const cpu_problem *p = ((const cpu_lanes *)user)->p;
  for (int i = 0; i < lanes; i++)
    out[i] =
        ir_random_value(p->seed, p->offset, p->whole_heads, (const double[]){at[0][i], at[1][i], at[2][i], at[3][i]});
}

/* With the scalars' values, which kernels merge with constants, too, once for a head. */
static void simplify(const cpu_problem *p, ir_ref *roots, int n) {
  ir_ref from[32], to[32];
  const int count = p->spec->traced.num_scalars;
  for (int i = 0; i < count; i++) {
    from[i] = ir_variable(p->g, VAR_SCALAR, (uint32_t)i);
    to[i] = ir_real(p->g, p->takes_doubles ? p->scalar[i] : (double)(float)p->scalar[i]);
  }
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) roots[i] = ir_substitute(p->g, roots[i], from, to, count);
  ir_simplify(p->g, roots, n);
}

luattn_status program_open(cpu_problem *p, const ir_ref *roots, int n, cpu_program *out, luattn_error *err) {
  const ir_decisions rule = {.doubles = p->decides_in_double,
                             .double_inputs = p->double_inputs,
                             .values = p->precision != LUATTN_F64,
                             .contracts = p->merges,
                             .coarse = p->coarse};
  *out = (cpu_program){0};
  if (n == 0) return LUATTN_OK;
  ir_ref *decided = arena_array(p->a, (size_t)n, sizeof *decided);
  if (decided != NULL) {
    memcpy(decided, roots, (size_t)n * sizeof *roots);
    if (p->merges) simplify(p, decided, n);
    ir_decide(p->g, decided, n, &rule);
    out->program = ir_program_new(p->a, p->g, decided, n);
  }
  if (out->program == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  const size_t need = ir_program_scratch(out->program);
  if (need > p->scratch_bytes) p->scratch_bytes = need;
  return LUATTN_OK;
}

void program_run(const cpu_program *p, cpu_lanes *lanes, int count, double *const *out) {
  if (p->program == NULL) return;
  const ir_env env = {
      .user = lanes, .variable = lane_variable, .load = lane_load, .load_wide = lane_load_wide, .random = lane_random};
  ir_program_run(p->program, &env, count, lanes->w->scratch, out);
}
