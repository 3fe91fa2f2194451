/* cli.h: what the subcommands share: options, arrays, one call's tensors, and how a failure is told. */
#ifndef LUATTN_CLI_H
#define LUATTN_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/fail.h"
#include "luattn/engine.h"

/* ---- options.c ---- */

typedef struct cli_pair {
  const char *name, *value;
} cli_pair;

#define CLI_MAX_PAIRS 32
#define CLI_MAX_SPECS 256
typedef struct cli_options {
  const char *spec;                 /* first word that is no option */
  const char *specs[CLI_MAX_SPECS]; /* all such words, where a subcommand takes several */
  int num_specs;
  const char *q, *k, *v, *dout, *dlse; /* .npy files */
  const char *shape, *layout, *dtype, *device, *out, *pack, *stage, *tile, *svg, *arch, *pass, *cache_dir,
      *family;
  const char *head_dim, *lengths, *skip, *max_bytes, *wants;
  cli_pair input[CLI_MAX_PAIRS], set[CLI_MAX_PAIRS];
  int num_inputs, num_sets;
  double scale;
  bool has_scale; /* --scale was given */
  long seed, repeat, time_limit, jobs, splits, batch, head;
  bool backward, full, no_tuned, list, with_specs, with_sources, deterministic, offsets;
  bool mask_only; /* no option: q, k and v stay zero, as nothing but the mask is asked */
} cli_options;

/* Which subcommands know an option. */
enum {
  CLI_RUN = 1,
  CLI_CHECK = 2,
  CLI_EMIT = 4,
  CLI_MASK = 8,
  CLI_BENCH = 16,
  CLI_CACHE = 32,
  CLI_DEVICES = 64,
  CLI_TUNE = 128,
  CLI_PACK = 256,
  CLI_WARM = 512
};

/* `name`: of the subcommand, for messages. Cuts NAME=VALUE words in argv in two. */
luattn_status options_parse(int argc, char **argv, int command, const char *name, cli_options *out,
                            luattn_error *err);
void options_print(FILE *to, int command); /* the part of --help that lists options */
/* "M,N,..": at most `most` numbers from 0 to INT32_MAX; how many there are, 0 if it is anything else. */
int parse_sizes(const char *text, int most, int *out);
/* "D", "D,Dv" or "DxDv", both at least 1. False: it is anything else. */
bool parse_head_dim(const char *text, int out[2]);

/* ---- array.c: owned host tensors ---- */

typedef struct array {
  DLTensor t;
  int64_t shape[4], stride[4];
  void *storage;
} array;

size_t array_bytes(const array *a);
bool dtype_parse(const char *name, luattn_dtype *out);
const char *dtype_name(luattn_dtype t);
DLDataType dtype_dl(luattn_dtype t);
DLDataType dtype_of_input(uint32_t input_dtype); /* luattn_input_dtype */
/* `heads_last`: axes 1 and 2 are stored swapped (logical order stays [batch, heads, len, dim]). */
luattn_status array_new(array *a, DLDataType type, int ndim, const int64_t *shape, bool heads_last,
                        luattn_error *err);
void array_free(array *a);
/* An element by its flat index in logical row-major order; array_at: where it is stored. */
double array_get(const array *a, int64_t flat);
const void *array_at(const array *a, int64_t flat);
void array_set(array *a, int64_t flat, double x);
int64_t array_count(const array *a);

/* Checks everything that it reads. The stream must be seekable, and is read to its end; `name` stands in
 * messages. */
luattn_status npy_read(const char *path, array *out, luattn_error *err);
luattn_status npy_read_stream(const char *name, FILE *f, array *out, luattn_error *err);
/* bf16, which NumPy does not know, is written as float32. */
luattn_status npy_write(const char *path, const array *a, luattn_error *err);

/* ---- problem.c: one call's tensors ---- */

typedef struct cli_problem {
  const luattn_spec *spec;
  luattn_spec_info info;
  int batch, heads, heads_kv, q_len, kv_len, dim, dim_v;
  luattn_dtype dtype;
  array q, k, v, dout, dlse;
  array input[12];
  luattn_scalar scalar[CLI_MAX_PAIRS];
  int num_scalars;
  double scale;
  int num_splits, skip;      /* as luattn_args has them */
  const unsigned char *kept; /* what the mask keeps, a byte for each score, where it is known; naive_forward
                                then asks the mask no more */
  bool heads_last;
} cli_problem;

/* --dtype, --family (as luattn_target.family), one value of --arch, of which only arch and ptx are set,
 * --lengths (as luattn_engine_options.lengths: 0 or 1 + luattn_lengths), and --shape or --head-dim, of which
 * only the sizes are set. */
luattn_status dtype_option(const cli_options *o, luattn_dtype *out, luattn_error *err);
luattn_status family_option(const cli_options *o, int *out, luattn_error *err);
luattn_status arch_option(const char *text, luattn_target *out, luattn_error *err);
luattn_status lengths_option(const cli_options *o, int *out, luattn_error *err);
luattn_status shape_option(const cli_options *o, cli_problem *out, luattn_error *err);

/* From files where given, random elsewhere (--seed). `need_dout`: fill dout (random unless given). */
luattn_status problem_read(const luattn_spec *spec, const cli_options *o, bool need_dout, cli_problem *out,
                           luattn_error *err);
void problem_free(cli_problem *p);

/* What a pass writes. Outputs in `real` (the type of lse and parameter gradients) or `storage`. */
typedef struct cli_result {
  array o, lse, saved, dq, dk, dv, input_grad[12], scalar_grads;
} cli_result;
luattn_status result_new(const cli_problem *p, DLDataType storage, DLDataType real, bool backward,
                         cli_result *out, luattn_error *err);
void result_free(cli_result *r);

/* Arguments that point into a problem and a result; `bind` holds the inputs' bindings and must outlive them.
 */
typedef struct cli_binding {
  luattn_input inputs[12];
} cli_binding;
luattn_args problem_args(const cli_problem *p, const cli_result *r, bool backward, cli_binding *bind);

/* ---- wide.c ---- */

/* A line on stderr, if an element of an integer input is further from 0 than kernels compute with, and the
 * spec does compute with that input, not only compare. */
void warn_of_wide_integers(const cli_problem *p, int input);

/* ---- gpu.c: the same on a device ---- */

typedef struct cli_gpu cli_gpu;
luattn_status gpu_open(const cli_options *o, cli_gpu **out, luattn_error *err);
/* As --device says; without it a GPU where there is one. *out = NULL: the CPU. */
luattn_status gpu_pick(const cli_options *o, cli_gpu **out, luattn_error *err);
void gpu_close(cli_gpu *g);
const char *gpu_name(const cli_gpu *g);
/* The GPU that --device, which must be given, names. */
luattn_status gpu_look(const cli_options *o, luattn_device_info *out, int *driver_version, luattn_error *err);
/* What the plans of the passes that ran last say about remembered tiles, if anything. */
void gpu_print_tuning(const cli_gpu *g);
/* Copies the problem to the device, poisons every output with NaN bytes, runs the passes and copies results
 * back. */
luattn_status gpu_run(cli_gpu *g, const cli_problem *p, bool backward, cli_result *r, luattn_error *err);
/* Median milliseconds of forward and (if asked for) backward over `repeat` launches. */
luattn_status gpu_bench(cli_gpu *g, const cli_problem *p, bool backward, int repeat, double *forward_ms,
                        double *backward_ms, luattn_error *err);

/* ---- cmd_bench.c ---- */

/* How many scores the mask keeps over batch and heads; of very long sequences an estimate, which *exact
 * tells. */
luattn_status bench_kept(const cli_problem *p, double *kept, bool *exact, luattn_error *err);
/* FLOPs of a pass, from these. */
double bench_flops(const cli_problem *p, luattn_pass pass, double kept);

/* ---- naive.c: plain Lua, one score at a time ---- */

/* Refuses a spec from a pipe or a terminal, which gives its text once. For what reads it again later. */
luattn_status spec_can_be_reread(const char *path, luattn_error *err);

/* Forward by the definition: every hook called in plain Lua with numbers, every score computed. Independent
 * of tracing, tiles and derivatives. Results in double. */
luattn_status naive_forward(const cli_options *o, const cli_problem *p, cli_result *r, luattn_error *err);
/* The mask's answers, for cli_problem.kept: batch x heads x q_len x kv_len bytes. */
luattn_status naive_mask(const cli_options *o, const cli_problem *p, unsigned char *kept, luattn_error *err);

/* ---- the subcommands ---- */

int cmd_run(const cli_options *o);
int cmd_check(const cli_options *o);
int cmd_emit(const cli_options *o);
int cmd_mask(const cli_options *o);
int cmd_bench(const cli_options *o);
int cmd_tune(const cli_options *o);
int cmd_cache(const cli_options *o);
int cmd_pack(const cli_options *o);
int cmd_warm(const cli_options *o);
int cmd_devices(const cli_options *o);

int cli_fail(const luattn_error *err); /* prints `luattn: message`; returns the exit code */

#endif
