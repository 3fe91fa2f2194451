/* problem.c: luattn_args checked and converted for the CPU path. */
#include <math.h>
#include <string.h>

#include "gen/cpu/cpu.h"

static luattn_status need_dim(const char *name, int axis, int64_t got, int64_t want, const char *why, luattn_error *err) {
  if (got == want) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "%s: axis %d has size %lld, expected %lld (%s)", name, axis, (long long)got,
                     (long long)want, why);
}

static luattn_status need_small(const char *name, int axis, int64_t got, int64_t least, int64_t most, luattn_error *err) {
  if (got >= least && got <= most) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "%s: axis %d has size %lld; it must be %lld to %lld", name, axis, (long long)got,
                     (long long)least, (long long)most);
}

static luattn_status read_shapes(const cpu_view *q, const cpu_view *k, const cpu_view *v, cpu_problem *p, luattn_error *err) {
  const int64_t big = INT32_MAX;
  TRY(need_small("q", 0, q->shape[0], 1, big, err));
  TRY(need_small("q", 1, q->shape[1], 1, big, err));
  TRY(need_small("q", 2, q->shape[2], 0, big, err));
  TRY(need_small("q", 3, q->shape[3], 1, 65536, err));
  TRY(need_small("k", 1, k->shape[1], 1, big, err));
  TRY(need_small("k", 2, k->shape[2], 0, big, err));
  TRY(need_small("v", 3, v->shape[3], 1, 65536, err));
  TRY(need_dim("k", 0, k->shape[0], q->shape[0], "q's batch", err));
  TRY(need_dim("k", 3, k->shape[3], q->shape[3], "q's head_dim", err));
  TRY(need_dim("v", 0, v->shape[0], q->shape[0], "q's batch", err));
  TRY(need_dim("v", 1, v->shape[1], k->shape[1], "k's heads", err));
  TRY(need_dim("v", 2, v->shape[2], k->shape[2], "k's length", err));
  p->batch = (int)q->shape[0], p->heads = (int)q->shape[1], p->q_len = (int)q->shape[2], p->dim = (int)q->shape[3];
  p->heads_kv = (int)k->shape[1], p->kv_len = (int)k->shape[2], p->dim_v = (int)v->shape[3];
  if (p->heads % p->heads_kv != 0) {
    return luattn_fail(err, LUATTN_INVALID, "k: %d kv heads do not divide q's %d heads; heads must be a multiple of heads_kv",
                       p->heads_kv, p->heads);
  }
  p->group = p->heads / p->heads_kv;
  return LUATTN_OK;
}

static int64_t axis_size(const cpu_problem *p, int axis) {
  switch (axis) {
    case LUATTN_AXIS_B: return p->batch;
    case LUATTN_AXIS_H: return p->heads;
    case LUATTN_AXIS_HKV: return p->heads_kv;
    case LUATTN_AXIS_Q: return p->q_len;
    case LUATTN_AXIS_KV: return p->kv_len;
    default: return axis; /* fixed */
  }
}

static const luattn_input *find_input(const luattn_args *args, const char *name) {
  for (size_t i = 0; i < args->num_inputs; i++) {
    if (args->inputs[i].name != NULL && strcmp(args->inputs[i].name, name) == 0) return &args->inputs[i];
  }
  return NULL;
}

static luattn_status read_inputs(const traced_spec *t, const luattn_args *args, cpu_problem *p, luattn_error *err) {
  for (int i = 0; i < t->num_inputs; i++) {
    const luattn_input_info *info = &t->input[i];
    const luattn_input *given = find_input(args, info->name);
    if (given == NULL) {
      return luattn_fail(err, LUATTN_INVALID, "input '%s': the spec '%s' reads it and it was not given; add it to args.inputs",
                         info->name, t->name);
    }
    TRY(view_open(info->name, given->tensor, (int)info->num_axes, &p->input[i], err));
    for (int j = 0; j < (int)info->num_axes; j++) {
      const int64_t size = p->input[i].shape[j];
      const bool broadcast = size == 1 && (info->axis[j] == LUATTN_AXIS_B || info->axis[j] == LUATTN_AXIS_H);
      if (info->axis[j] == LUATTN_AXIS_FREE) TRY(need_small(info->name, j, size, 1, INT32_MAX, err));
      else if (!broadcast) TRY(need_dim(info->name, j, size, axis_size(p, info->axis[j]), "as the spec declares", err));
    }
    if (given->grad == NULL || given->grad->data == NULL) continue;
    if (!info->grad) {
      return luattn_fail(err, LUATTN_INVALID, "input '%s': a gradient is asked for, but the spec does not mark it grad = true",
                         info->name);
    }
    TRY(view_open(info->name, given->grad, (int)info->num_axes, &p->input_grad[i], err));
    for (int j = 0; j < (int)info->num_axes; j++) {
      TRY(need_dim(info->name, j, p->input_grad[i].shape[j], p->input[i].shape[j], "its gradient has the input's sizes", err));
    }
  }
  for (size_t i = 0; i < args->num_inputs; i++) {
    bool known = false;
    for (int j = 0; j < t->num_inputs && !known; j++) known = strcmp(args->inputs[i].name, t->input[j].name) == 0;
    if (!known) {
      return luattn_fail(err, LUATTN_INVALID, "input '%s': the spec '%s' declares no input of that name", args->inputs[i].name,
                         t->name);
    }
  }
  return LUATTN_OK;
}

static luattn_status read_scalars(const traced_spec *t, const luattn_args *args, cpu_problem *p, luattn_error *err) {
  for (int i = 0; i < t->num_scalars; i++) p->scalar[i] = t->scalar_default[i];
  for (size_t i = 0; i < args->num_scalars; i++) {
    int at = 0;
    while (at < t->num_scalars && strcmp(args->scalars[i].name, t->scalar_name[at]) != 0) at++;
    if (at == t->num_scalars) {
      return luattn_fail(err, LUATTN_INVALID, "scalar '%s': the spec '%s' declares no scalar of that name",
                         args->scalars[i].name, t->name);
    }
    p->scalar[at] = args->scalars[i].value;
  }
  p->scale = args->scale != 0 ? args->scale : 1.0 / sqrt((double)p->dim);
  if (!(p->scale > 0) || !isfinite(p->scale)) {
    return luattn_fail(err, LUATTN_INVALID, "scale: %g is not a positive finite number; 0 means head_dim^-1/2", p->scale);
  }
  return LUATTN_OK;
}

/* One tensor to doubles, through its input mod. */
static luattn_status convert(cpu_problem *p, const cpu_view *from, ir_ref mod, int heads, double **out, luattn_error *err) {
  const int len = (int)from->shape[2], dim = (int)from->shape[3];
  double *to = arena_array(p->a, (size_t)p->batch * (size_t)heads * (size_t)len, (size_t)dim * sizeof *to + 1);
  cpu_program program;
  if (to == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  TRY(program_open(p->a, p->g, &mod, mod != IR_NONE, &program, err));
  *out = to;
  for (int b = 0; b < p->batch; b++) {
    for (int h = 0; h < heads; h++) {
      for (int i = 0; i < len; i++) {
        double *row = to + cpu_at(heads, len, dim, b, h, i);
        for (int d = 0; d < dim; d++) row[d] = view_get(from, (int64_t[]){b, h, i, d});
        for (int d0 = 0; mod != IR_NONE && d0 < dim; d0 += IR_LANES) {
          const int count = dim - d0 < IR_LANES ? dim - d0 : IR_LANES;
          double x[IR_LANES], channel[IR_LANES], y[IR_LANES];
          for (int d = 0; d < count; d++) x[d] = row[d0 + d], channel[d] = d0 + d;
          cpu_lanes lanes = {.p = p, .b = b, .h = h, .pos0 = i, .d = channel, .x = x};
          program_run(&program, &lanes, count, (double *const[]){y});
          memcpy(row + d0, y, (size_t)count * sizeof *y);
        }
      }
    }
  }
  return LUATTN_OK;
}

luattn_status problem_open(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision, arena *a, cpu_problem *p,
                           luattn_error *err) {
  const traced_spec *t = &spec->traced;
  cpu_view q, k, v;
  *p = (cpu_problem){.a = a, .spec = spec, .precision = precision};
  TRY(view_open("q", args->q, 4, &q, err));
  TRY(view_open("k", args->k, 4, &k, err));
  TRY(view_open("v", args->v, 4, &v, err));
  TRY(read_shapes(&q, &k, &v, p, err));
  TRY(read_inputs(t, args, p, err));
  TRY(read_scalars(t, args, p, err));
  p->g = ir_clone(a, t->g);
  if (p->g == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  traced_spec cloned = *t;
  cloned.g = p->g;
  TRY(mask_analyse(a, &cloned, &p->mask, err));
  p->bounds = arena_array(a, ir_count(p->g), sizeof *p->bounds);
  return p->bounds != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
}

luattn_status problem_convert(cpu_problem *p, const luattn_args *args, luattn_error *err) {
  const traced_spec *t = &p->spec->traced;
  cpu_view q, k, v;
  TRY(view_open("q", args->q, 4, &q, err));
  TRY(view_open("k", args->k, 4, &k, err));
  TRY(view_open("v", args->v, 4, &v, err));
  TRY(convert(p, &q, t->query_mod, p->heads, &p->q, err));
  TRY(convert(p, &k, t->key_mod, p->heads_kv, &p->k, err));
  return convert(p, &v, t->value_mod, p->heads_kv, &p->v, err);
}
