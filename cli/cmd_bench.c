/* cmd_bench.c: luattn bench. FLOPs are counted from the elements that the mask keeps in non-empty tiles:
 * forward 2 * (D + Dv) for each, backward 2.5 times that (FlashAttention's convention). */
#include <stdlib.h>

#include "cli/cli.h"

#define TILE 64

/* Elements in tiles that a kernel must visit, summed over batch and heads. */
static luattn_status visited_elements(const cli_problem *p, double *out, luattn_error *err) {
  const int rows = (p->q_len + TILE - 1) / TILE, columns = (p->kv_len + TILE - 1) / TILE;
  unsigned char *tile = malloc((size_t)rows * (size_t)columns + 1);
  cli_result r = {0};
  cli_binding bind;
  const luattn_args args = problem_args(p, &r, false, &bind);
  luattn_status status = tile != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "out of memory");
  *out = 0;
  for (int b = 0; b < p->batch && status == LUATTN_OK; b++) {
    for (int h = 0; h < p->heads && status == LUATTN_OK; h++) {
      status = luattn_mask_tiles(p->spec, &args, b, h, TILE, TILE, tile, err);
      for (int i = 0; i < rows * columns && status == LUATTN_OK; i++) {
        *out += tile[i] == 2 ? TILE * TILE : tile[i] == 1 ? TILE * TILE / 2.0 : 0; /* a partial tile keeps about half */
      }
    }
  }
  free(tile);
  return status;
}

static luattn_status bench(const cli_options *o, const cli_problem *p, luattn_error *err) {
  cli_gpu *gpu;
  double elements, forward = 0, backward = 0;
  TRY(gpu_open(o, &gpu, err));
  luattn_status status = visited_elements(p, &elements, err);
  if (status == LUATTN_OK) status = gpu_bench(gpu, p, o->backward, (int)(o->repeat > 0 ? o->repeat : 1), &forward, &backward, err);
  if (status == LUATTN_OK) {
    const double flops = 2.0 * elements * (p->dim + p->dim_v);
    printf("%s on %s: B%d H%d/%d Sq%d Skv%d D%d Dv%d %s\n", p->info.name, gpu_name(gpu), p->batch, p->heads, p->heads_kv, p->q_len,
           p->kv_len, p->dim, p->dim_v, dtype_name(p->dtype));
    printf("  forward   %9.4f ms  %7.1f TFLOP/s\n", forward, flops / forward / 1e9);
    if (o->backward) printf("  backward  %9.4f ms  %7.1f TFLOP/s\n", backward, 2.5 * flops / backward / 1e9);
  }
  gpu_close(gpu);
  return status;
}

int cmd_bench(const cli_options *given) {
  luattn_error err;
  luattn_spec *spec;
  cli_problem p;
  cli_options o = *given;
  if (o.dtype == NULL) o.dtype = "bf16";
  if (luattn_spec_load(o.spec, NULL, &spec, &err) != LUATTN_OK) return cli_fail(&err);
  luattn_status status = problem_read(spec, &o, o.backward, &p, &err);
  if (status == LUATTN_OK) {
    status = bench(&o, &p, &err);
    problem_free(&p);
  }
  luattn_spec_free(spec);
  return status == LUATTN_OK ? 0 : cli_fail(&err);
}
