/* lanes.c: what variables and gathers mean while a program runs over the lanes of a tile row. */
#include <math.h>

#include "gen/cpu/cpu.h"

static void fill(double *out, int lanes, const double *values, double same) {
  for (int i = 0; i < lanes; i++) out[i] = values != NULL ? values[i] : same;
}

static void lane_variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  const cpu_lanes *c = user;
  const cpu_problem *p = c->p;
  switch (v) {
    case VAR_SCORE:
      fill(out, lanes, c->score, 0);
      return;
    case VAR_B:
      fill(out, lanes, NULL, c->b);
      return;
    case VAR_H:
      fill(out, lanes, NULL, c->h);
      return;
    case VAR_Q:
      fill(out, lanes, NULL, c->q_idx);
      return;
    case VAR_KV:
      fill(out, lanes, c->kv_idx, 0);
      return;
    case VAR_Q_LEN:
      fill(out, lanes, NULL, p->q_len);
      return;
    case VAR_KV_LEN:
      fill(out, lanes, NULL, p->kv_len);
      return;
    case VAR_HEADS:
      fill(out, lanes, NULL, p->heads);
      return;
    case VAR_HEADS_KV:
      fill(out, lanes, NULL, p->heads_kv);
      return;
    case VAR_SCALAR:
      fill(out, lanes, NULL, p->scalar[index]);
      return;
    case VAR_X:
      fill(out, lanes, c->x, 0);
      return;
    case VAR_POS:
      fill(out, lanes, c->pos, c->pos0);
      return;
    case VAR_D:
      fill(out, lanes, c->d, 0);
      return;
    case VAR_STATE:
      fill(out, lanes, NULL, c->state[index]);
      return;
    case VAR_OUT:
      fill(out, lanes, NULL, c->out);
      return;
    case VAR_FINAL:
      fill(out, lanes, NULL, c->final[index]);
      return;
    case VAR_DP:
      fill(out, lanes, c->dp, 0);
      return;
    case VAR_DELTA:
      fill(out, lanes, NULL, c->delta);
      return;
    case VAR_DLSE:
      fill(out, lanes, NULL, c->dlse);
      return;
    case VAR_ROW:
      fill(out, lanes, NULL, c->row[index]);
      return;
    case VAR_RED:
      fill(out, lanes, NULL, c->red[index]);
      return;
    case VAR_SCALE:
      fill(out, lanes, NULL, p->scale);
      return;
    case VAR_GRAD:
      fill(out, lanes, c->grad, 0);
      return;
    case VAR_P:
    case VAR_DOT:
    case VAR_TILE:
    case VAR_PART:
    case VAR_SHIFT:
    case VAR_COUNT:
      break;
  }
  fill(out, lanes, NULL, NAN); /* analysis leaves none of these in an expression; NaN would show it */
}

static bool is_empty(const cpu_view *t, int num_axes) {
  for (int j = 0; j < num_axes; j++)
    if (t->shape[j] == 0) return true;
  return false;
}

static int64_t clamp_index(double x, int64_t size) {
  if (!(x > 0)) return 0;
  return x >= (double)(size - 1) ? size - 1 : (int64_t)x;
}

static void lane_load(void *user, uint32_t input, int n_index, const double *const *index, int lanes,
                      double *out) {
  const cpu_lanes *c = user;
  const cpu_view *t = &c->p->input[input];
  const bool empty = is_empty(t, n_index); /* a row gathers even where there are no keys: it gets 0 */
  for (int i = 0; i < lanes; i++) {
    if (empty) {
      out[i] = 0;
      continue;
    }
    int64_t at[4] = {0};
    for (int j = 0; j < n_index; j++) at[j] = clamp_index(index[j][i], t->shape[j]);
    out[i] = view_get(t, at);
  }
}

luattn_status program_open(arena *a, const ir *g, const ir_ref *roots, int n, cpu_program *out,
                           luattn_error *err) {
  *out = (cpu_program){0};
  if (n == 0) return LUATTN_OK;
  out->program = ir_program_new(a, g, roots, n);
  if (out->program != NULL) out->scratch = arena_new(a, ir_program_scratch(out->program));
  return out->scratch != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
}

void program_run(const cpu_program *p, cpu_lanes *lanes, int count, double *const *out) {
  if (p->program == NULL) return;
  const ir_env env = {.user = lanes, .variable = lane_variable, .load = lane_load};
  ir_program_run(p->program, &env, count, p->scratch, out);
}
