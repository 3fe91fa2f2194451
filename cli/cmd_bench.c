/* cmd_bench.c: luattn bench. FLOPs are counted from the scores that the mask keeps: forward 2 * (D + Dv) for
 * each, backward 2.5 times that (FlashAttention's convention). */
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/gpu.h"
#include "cli/one_sequence.h"

/* Leaves the last batch entry out of what there is already. */
static void drop_last_entry(cli_problem *p) {
  array *const tensors[] = {&p->q, &p->k, &p->v};
  p->batch--;
  for (int i = 0; i < 3; i++) tensors[i]->shape[0]--;
  for (size_t i = 0; i < p->info.num_inputs; i++)
    for (uint32_t j = 0; j < p->info.inputs[i].num_axes; j++)
      if (p->info.inputs[i].axis[j] == LUATTN_AXIS_B && p->input[i].shape[j] > 1) p->input[i].shape[j]--;
}

/* Of the last batch entry: of all, less of those before it. */
static luattn_status kept_of_last(cli_problem *p, double *all, double *kept, double *error, luattn_error *err) {
  double scores, keeps, off;
  TRY(bench_kept(p, all, kept, error, err));
  if (p->batch == 1) return LUATTN_OK;
  drop_last_entry(p);
  TRY(bench_kept(p, &scores, &keeps, &off, err));
  *all -= scores, *kept -= keeps, *error += off;
  return LUATTN_OK;
}

static luattn_status kept_of_sequences(const cli_problem *p, double *all, double *kept, double *error,
                                       luattn_error *err) {
  *all = *kept = *error = 0;
  for (int i = 0; i < p->batch; i++) {
    cli_problem one;
    double scores, keeps, off;
    TRY(sequence_take(p, i, &one, err));
    const luattn_status s = kept_of_last(&one, &scores, &keeps, &off, err);
    problem_free(&one);
    TRY(s);
    *all += scores, *kept += keeps, *error += off;
  }
  return LUATTN_OK;
}

luattn_status bench_kept(const cli_problem *p, double *all, double *out, double *error, luattn_error *err) {
  cli_result r = {0};
  cli_binding bind;
  const luattn_args args = problem_args(p, &r, false, &bind);
  luattn_mask_counts counts = {.struct_size = sizeof counts};
  if (p->sequences != NULL) return kept_of_sequences(p, all, out, error, err);
  *all = (double)p->batch * p->heads * p->q_len * p->kv_len;
  TRY(luattn_mask_survey(p->spec, NULL, &args, 64, 64, &counts, err));
  *out = counts.kept, *error = counts.kept_error;
  return LUATTN_OK;
}

/* The tiles that the kernels which were measured compute. */
static luattn_status print_tiles(const cli_options *o, const luattn_device_info *device, const cli_problem *p,
                                 luattn_pass pass, luattn_error *err) {
  cli_result r = {0};
  cli_binding bind;
  cli_options with_arch = *o;
  char arch[16];
  luattn_target target;
  luattn_mask_counts counts = {.struct_size = sizeof counts};
  const luattn_args args = problem_args(p, &r, false, &bind);
  if (!p->info.has_mask || p->sequences != NULL) return LUATTN_OK;
  snprintf(arch, sizeof arch, "sm_%d", device->arch);
  with_arch.arch = arch;
  TRY(mask_target(&with_arch, p, pass, &target, err));
  target.device = o->no_tuned ? NULL : device->name;
  TRY(luattn_mask_survey(p->spec, &target, &args, 0, 0, &counts, err));
  printf("  %s computes ", kernel_pass_name(pass));
  mask_counts_print(&counts);
  printf("; by %s\n", mask_means_text(&counts));
  return LUATTN_OK;
}

double bench_flops(const cli_problem *p, luattn_pass pass, double kept) {
  return (pass == LUATTN_FORWARD ? 2 : 5) * kept * (p->dim + p->dim_v);
}

static luattn_status bench(const cli_options *o, cli_gpu *gpu, const cli_problem *p, luattn_error *err) {
  double all, kept, error, forward = 0, backward = 0;
  char text[32], sizes[PROBLEM_TEXT];
  TRY(bench_kept(p, &all, &kept, &error, err));
  TRY(gpu_bench(gpu, p, o->backward, (int)o->repeat, &forward, &backward, err));
  printf("%s on %s: %s %s%s\n", p->info.name, gpu_name(gpu), problem_text(p, sizes), kernel_dtype_name(p->dtype),
         p->large_scores ? ", large scores" : "");
  printf("  the mask keeps %.2f%% of the scores%s\n", all > 0 ? 100 * kept / all : 0,
         mask_error_text(kept, error, text));
  printf("  forward   %9.4f ms  %7.1f TFLOP/s\n", forward, bench_flops(p, LUATTN_FORWARD, kept) / forward / 1e9);
  if (o->backward)
    printf("  backward  %9.4f ms  %7.1f TFLOP/s\n", backward, bench_flops(p, LUATTN_BACKWARD, kept) / backward / 1e9);
  TRY(print_tiles(o, &gpu->info, p, LUATTN_FORWARD, err));
  if (o->backward) TRY(print_tiles(o, &gpu->info, p, LUATTN_BACKWARD, err));
  gpu_print_tuning(gpu);
  return LUATTN_OK;
}

/* Find the GPU before arrays are filled for it. */
static luattn_status open_and_bench(const cli_options *o, const luattn_spec *spec, luattn_error *err) {
  cli_gpu *gpu;
  cli_problem p;
  if (o->repeat < 1 || o->repeat > 1000) {
    return luattn_fail(err, LUATTN_INVALID, "--repeat: %ld launches are not possible; use 1 to 1000", o->repeat);
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
  if (spec_option(&o, &spec, &err) != LUATTN_OK) return cli_fail(&err);
  const luattn_status status = open_and_bench(&o, spec, &err);
  luattn_spec_free(spec);
  return status == LUATTN_OK ? 0 : cli_fail(&err);
}
