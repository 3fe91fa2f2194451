/* linear_recurrent.c: linear attention token by token, with the state in registers (templates/linear/recurrent). */
#include "abi/kernel_facts.h"
#include "common/fail.h"
#include "gen/analysis/linear/linear_adjoint.h"
#include "gen/plan/linear_family.h"

enum { LEAST_DIM = 8, MOST_DIM = 256, MOST_WARPS = 8, THREADS_OF_MULTIPROCESSOR = 512 };

static luattn_status check_dim(const char *name, int x, luattn_error *err) {
  if (x % LEAST_DIM == 0 && x <= MOST_DIM) return LUATTN_OK;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "target: %s: is %d, and kernels of linear attention take multiples of %d up to %d; run it on the "
                     "CPU",
                     name, x, LEAST_DIM, MOST_DIM);
}

static luattn_status check(const luattn_target *t, luattn_error *err) {
  if (t->pass != LUATTN_FORWARD)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "target: pass: is %s, and linear attention has kernels of forward alone yet; run its backward on the CPU",
        kernel_pass_name(t->pass));
  if (t->arch < 80)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "target: arch: is sm_%d, and linear attention has kernels for sm_80 and newer; run it on the CPU", t->arch);
  if (t->dtype == LUATTN_F64)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: dtype: is f64, and kernels of linear attention compute in f32; convert q, k and v, or "
                       "run it on the CPU");
  TRY(check_dim("head_dim", t->head_dim, err));
  return check_dim("head_dim_v", t->head_dim_v, err);
}

/* Numbers of a token's rows in shared memory: TokenLayout of recurrent_shape.cuh. */
static int row_size(const derived_linear *d, const linear_plan *p) {
  const int k = (p->k_dim + 31) / 32 * 32;
  const int of_k = 2 + d->class.reads + d->class.erases + (d->class.decay == LINEAR_DECAY_CHANNEL);
  return of_k * k + (2 + d->hook[LINEAR_SKIP].given) * p->v_block + 4;
}

static const char *explain(arena *a, const linear_plan *p, const derived_linear *d, int batch) {
  return arena_printf(a,
                      "linear attention of class L%d token by token: the state stays in registers, and is read and "
                      "written once\n"
                      "a warp has all of K and %d value channels, a block at most %d; rows of %d tokens at once lie in "
                      "shared memory\n"
                      "%s\n",
                      (int)d->class.number, p->v_warp, p->v_block, batch,
                      d->class.normalizes ? "one block a value head: all of its channels are divided by one sum"
                                          : "where value heads are few, blocks of a launch have fewer value channels");
}

static void plan(arena *a, const luattn_spec *spec, const luattn_target *t, linear_plan *p) {
  (void)t;
  const derived_linear *d = spec->linear;
  const int v_lane = p->k_dim > 128 ? 2 : 4;
  p->v_warp = 4 * v_lane;
  int warps = (p->v_dim + p->v_warp - 1) / p->v_warp, batch = 16;
  if (warps > MOST_WARPS) warps = MOST_WARPS;
  p->source = "entry/linear_recurrent.cu";
  p->v_block = warps * p->v_warp;
  p->normalizes = d->class.normalizes;
  while (batch > 1 && batch * row_size(d, p) * 4 > 24 << 10) batch /= 2;
  p->constants = arena_printf(a,
                              "  using Number = float;\n"
                              "  static constexpr int v_lane = %d, batch = %d, threads = %d, blocks = %d;\n",
                              v_lane, batch, 32 * warps, THREADS_OF_MULTIPROCESSOR / (32 * warps));
  linear_plan_add(p, "luattn_linear", LUATTN_ROLE_LINEAR, 32 * warps, batch * row_size(d, p) * 4);
  p->why = explain(a, p, d, batch);
}

const linear_family linear_recurrent = {
    .name = "token by token", .family = LUATTN_SIMT, .whole_hooks = true, .check = check, .plan = plan};
