/* cmd_bench.c: luattn bench. FLOPs are counted from the scores that the mask keeps: forward 2 * (D + Dv) for
 * each, backward 2.5 times that (FlashAttention's convention). */
#include <stdlib.h>

#include "cli/cli.h"

#define TILE 64
#define MOST_COUNTED (INT64_C(1) << 28) /* scores of one head: about a second for a mask of partial tiles */

/* Scores in tiles, summed over batch and heads, where a partial tile counts for half. */
static luattn_status estimate_kept(const cli_problem *p, const luattn_args *args, double *out,
                                   luattn_error *err) {
  const int rows = p->q_len / TILE + (p->q_len % TILE != 0),
            columns = p->kv_len / TILE + (p->kv_len % TILE != 0);
  unsigned char *tile = malloc((size_t)rows * (size_t)columns + 1);
  luattn_status status =
      tile != NULL ? LUATTN_OK
                   : luattn_fail(err, LUATTN_NO_MEMORY, "bench: no memory for %dx%d tiles", rows, columns);
  *out = 0;
  for (int b = 0; b < p->batch && status == LUATTN_OK; b++) {
    for (int h = 0; h < p->heads && status == LUATTN_OK; h++) {
      status = luattn_mask_tiles(p->spec, args, b, h, TILE, TILE, tile, err);
      for (int64_t i = 0; i < (int64_t)rows * columns && status == LUATTN_OK; i++)
        *out += tile[i] * (TILE * TILE / 2.0);
    }
  }
  free(tile);
  return status;
}

luattn_status bench_kept(const cli_problem *p, double *out, bool *exact, luattn_error *err) {
  cli_result r = {0};
  cli_binding bind;
  const luattn_args args = problem_args(p, &r, false, &bind);
  int64_t kept = 0;
  *exact = (int64_t)p->q_len * p->kv_len <= MOST_COUNTED;
  if (!*exact) return estimate_kept(p, &args, out, err);
  TRY(luattn_mask_count(p->spec, &args, &kept, err));
  *out = (double)kept;
  return LUATTN_OK;
}

double bench_flops(const cli_problem *p, luattn_pass pass, double kept) {
  return (pass == LUATTN_FORWARD ? 2 : 5) * kept * (p->dim + p->dim_v);
}

static luattn_status bench(const cli_options *o, cli_gpu *gpu, const cli_problem *p, luattn_error *err) {
  double kept, forward = 0, backward = 0;
  bool exact;
  TRY(bench_kept(p, &kept, &exact, err));
  TRY(gpu_bench(gpu, p, o->backward, (int)o->repeat, &forward, &backward, err));
  const double all = (double)p->batch * p->heads * p->q_len * p->kv_len;
  printf("%s on %s: B%d H%d/%d Sq%d Skv%d D%d Dv%d %s%s\n", p->info.name, gpu_name(gpu), p->batch, p->heads,
         p->heads_kv, p->q_len, p->kv_len, p->dim, p->dim_v, dtype_name(p->dtype),
         p->large_scores ? ", large scores" : "");
  printf("  the mask keeps %.2f%% of the scores%s\n", all > 0 ? 100 * kept / all : 0,
         exact ? "" : " (partial 64x64 tiles counted as half: too many to count)");
  printf("  forward   %9.4f ms  %7.1f TFLOP/s\n", forward,
         bench_flops(p, LUATTN_FORWARD, kept) / forward / 1e9);
  if (o->backward)
    printf("  backward  %9.4f ms  %7.1f TFLOP/s\n", backward,
           bench_flops(p, LUATTN_BACKWARD, kept) / backward / 1e9);
  gpu_print_tuning(gpu);
  return LUATTN_OK;
}

/* Find the GPU before arrays are filled for it. */
static luattn_status open_and_bench(const cli_options *o, const luattn_spec *spec, luattn_error *err) {
  cli_gpu *gpu;
  cli_problem p;
  if (o->repeat < 1 || o->repeat > 1000) {
    return luattn_fail(err, LUATTN_INVALID, "--repeat: %ld launches are not possible; use 1 to 1000",
                       o->repeat);
  }
  TRY(gpu_open(o, &gpu, err));
  luattn_status status = problem_read(spec, o, o->backward, &p, err);
  if (status == LUATTN_OK) {
    status = bench(o, gpu, &p, err);
    problem_free(&p);
  }
  gpu_close(gpu);
  return status;
}

int cmd_bench(const cli_options *given) {
  luattn_error err;
  luattn_spec *spec;
  cli_options o = *given;
  if (o.dtype == NULL) o.dtype = "bf16";
  if (luattn_spec_load(o.spec, NULL, &spec, &err) != LUATTN_OK) return cli_fail(&err);
  const luattn_status status = open_and_bench(&o, spec, &err);
  luattn_spec_free(spec);
  return status == LUATTN_OK ? 0 : cli_fail(&err);
}
