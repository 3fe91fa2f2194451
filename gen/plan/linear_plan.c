#include "gen/plan/linear_plan.h"

#include <inttypes.h>
#include <stddef.h>

#include "abi/kernel_facts.h"
#include "abi/linear_params.h"
#include "common/fail.h"
#include "gen/analysis/linear/linear_adjoint.h"

enum { MOST_STAGES = 4, MOST_K = 128, MOST_V = 256 };

static luattn_status check_ranges(const luattn_target *t, luattn_error *err) {
#define TARGET_FACT(name, type, range, expected, key)                                               \
  do {                                                                                              \
    const long long x = (long long)t->name;                                                         \
    (void)x;                                                                                        \
    if (!(range)) return luattn_fail(err, LUATTN_INVALID, "target: " #name ": " expected, t->name); \
  } while (0);
#include "abi/kernel_facts.def"
  return LUATTN_OK;
}

/* What is of attention alone. */
static luattn_status refuse_choices(const luattn_target *t, luattn_error *err) {
  const struct {
    const char *name;
    long long value;
  } choice[] = {{"tile_m", t->tile_m},
                {"tile_n", t->tile_n},
                {"pages", t->pages},
                {"offsets", t->offsets},
                {"large_scores", t->large_scores},
                {"keys_modified", t->keys_modified},
                {"decode", t->decode},
                {"many_rows", t->many_rows},
                {"weights", t->weights},
                {"out_f32", t->out_f32},
                {"grad_f32", t->grad_f32},
                {"boxes", t->boxes},
                {"query_tile_size", (long long)t->query_tile_size},
                {"key_tile_size", (long long)t->key_tile_size},
                {"tiles", t->tiles != NULL}};
  for (size_t i = 0; i < sizeof choice / sizeof *choice; i++)
    if (choice[i].value != 0)
      return luattn_fail(err, LUATTN_UNSUPPORTED,
                         "target: %s: is %lld, and kernels of linear attention have no such choice; leave it 0",
                         choice[i].name, choice[i].value);
  return LUATTN_OK;
}

static luattn_status lacks_dim(const char *name, const char *of, int x, int most, luattn_error *err) {
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "target: %s: is %d, and the kernel of linear attention takes multiples of 8 up to %d channels of "
                     "%s; run it on the CPU",
                     name, x, most, of);
}

luattn_status linear_plan_check(const luattn_target *t, luattn_error *err) {
  TRY(check_ranges(t, err));
  TRY(refuse_choices(t, err));
  if (t->pass != LUATTN_FORWARD)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "target: pass: is %s, and linear attention has kernels of forward alone yet; run its backward on the CPU",
        kernel_pass_name(t->pass));
  if (t->arch != 90)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: arch: is sm_%d, and linear attention has kernels for sm_90a alone yet; run it on the "
                       "CPU",
                       t->arch);
  if (t->family != 0 && t->family != 1 + LUATTN_SM90)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: family: is %s, and linear attention has kernels of the sm90 family alone yet; leave it "
                       "0",
                       kernel_family_name((uint32_t)t->family - 1));
  if (t->dtype != LUATTN_BF16 && t->dtype != LUATTN_F16)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: dtype: is %s, and linear attention has kernels of bf16 and f16 alone yet; convert q, k "
                       "and v, or run it on the CPU",
                       kernel_dtype_name(t->dtype));
  if (t->head_dim % 8 != 0 || t->head_dim > MOST_K) return lacks_dim("head_dim", "q and k", t->head_dim, MOST_K, err);
  if (t->head_dim_v % 8 != 0 || t->head_dim_v > MOST_V) return lacks_dim("head_dim_v", "v", t->head_dim_v, MOST_V, err);
  return LUATTN_OK;
}

static const char *explain(arena *a, const linear_plan *p, int number) {
  const int blocks = (p->v_dim + p->v_block - 1) / p->v_block;
  return arena_printf(
      a,
      "linear attention of class L%d by chunks of %d tokens: the state stays in registers, q, k and v are read once\n"
      "%d value channels a block, %d block%s a value head: %s\n"
      "%d stages of q, k and v: as many as %d bytes of shared memory have room for, and no more than %d\n"
      "%s\n",
      number, LUATTN_CHUNK, p->v_block, blocks, blocks == 1 ? "" : "s, which read q and k anew",
      p->v_block == 64 ? "a warpgroup owns 64 of them" : "two warpgroups own 64 each", p->stages,
      LUATTN_SM90_SHARED_BYTES, MOST_STAGES,
      p->cuts ? "segments: entries are cut at launch where value heads are fewer than multiprocessors; what a segment "
                "adds to the state needs no other one"
              : "no segments: what a segment that erases makes of the state is a map, which no kernel finds yet");
}

luattn_status linear_plan_make(arena *a, const luattn_spec *spec, const luattn_target *target, linear_plan *out,
                               luattn_error *err) {
  luattn_target t = *target;
  if (t.head_dim_v == 0) t.head_dim_v = t.head_dim;
  TRY(linear_plan_check(&t, err));
  linear_plan p = {.dtype = t.dtype, .k_dim = t.head_dim, .v_dim = t.head_dim_v, .packed = t.packed != 0};
  p.erases = spec->linear->class.reads;
  p.cuts = !p.erases;
  p.v_block = p.v_dim > 64 ? 128 : 64;
  p.threads = 128 * (2 + p.v_block / 64);
  for (p.stages = MOST_STAGES; p.stages > 2; p.stages--)
    if (linear_layout(p.k_dim, p.v_block, p.stages, p.erases).bytes <= LUATTN_SM90_SHARED_BYTES) break;
  p.shared_bytes = linear_layout(p.k_dim, p.v_block, p.stages, p.erases).bytes;
  p.why = explain(a, &p, (int)spec->linear->class.number);
  *out = p;
  return p.why != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "plan: out of memory");
}
