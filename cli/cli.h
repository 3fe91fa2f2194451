/* cli.h: shared by the subcommands: options, arrays, one call's tensors, and reports of failures. */
#ifndef LUATTN_CLI_H
#define LUATTN_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "abi/kernel_facts.h"
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
  const char *shape, *layout, *dtype, *device, *out, *pack, *stage, *tile, *svg, *json, *arch, *pass, *cache_dir,
      *family;
  const char *query, *query_tile_size, *key_tile_size, *head_dim, *lengths, *skip, *max_bytes, *wants, *along, *offsets,
      *pages;
  const char *cu_seqlens, *cu_seqlens_q, *cu_seqlens_k;
  cli_pair input[CLI_MAX_PAIRS], set[CLI_MAX_PAIRS];
  int num_inputs, num_sets;
  double scale, dropout;
  bool has_scale, has_dropout; /* --scale, --dropout were given */
  long seed, repeat, time_limit, jobs, splits, batch, head, ranks, node;
  bool backward, full, weights, no_tuned, list, with_specs, with_sources, deterministic, decode, no_decode, packed,
      own_backward, tangents, jvp, dry_run;
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks) bool name;
#include "abi/kernel_facts.def"
  bool mask_only; /* not an option: only the mask is asked for, so q, k and v stay zero */
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
  CLI_WARM = 512,
  CLI_PLAN = 1024
};

/* `name`: the subcommand, for messages. Splits NAME=VALUE words of argv in place. */
luattn_status options_parse(int argc, char **argv, int command, const char *name, cli_options *out, luattn_error *err);
void options_print(FILE *to, int command); /* prints the options of --help */
/* Parses "M,N,..": at most `most` numbers from 0 to INT32_MAX. Returns how many there are, 0 on any other
 * text. */
int parse_sizes(const char *text, int most, int *out);
/* --query-tile-size and --key-tile-size, as luattn_target has them. box_option.c */
luattn_status box_options(const cli_options *o, uint64_t *query_tile_size, uint64_t *key_tile_size, luattn_error *err);
/* Parses "D", "D,Dv" or "DxDv", both at least 1. Returns false on any other text. */
bool parse_head_dim(const char *text, int out[2]);

/* ---- kernel_options.c ---- */

/* --dtype and --pass, which leave *out as it is where they are not given; --family, as luattn_target.family; one value
 * of --arch, of which only arch and ptx are set; --lengths, as luattn_engine_options.lengths: 0 or 1 +
 * luattn_lengths. */
bool dtype_parse(const char *name, luattn_dtype *out);
luattn_status dtype_option(const cli_options *o, luattn_dtype *out, luattn_error *err);
luattn_status pass_option(const cli_options *o, luattn_pass *out, luattn_error *err);
luattn_status family_option(const cli_options *o, int *out, luattn_error *err);
luattn_status arch_option(const char *text, luattn_target *out, luattn_error *err);
luattn_status lengths_option(const cli_options *o, int *out, luattn_error *err);

/* ---- array.c: owned host tensors ---- */

enum { ARRAY_MAX_AXES = 1 + 3 + LUATTN_MAX_AXES }; /* of `saved`, over a grid */

typedef struct array {
  DLTensor t;
  int64_t shape[ARRAY_MAX_AXES], stride[ARRAY_MAX_AXES];
  void *storage;
} array;

size_t array_bytes(const array *a);
DLDataType dtype_dl(luattn_dtype t);
DLDataType dtype_of_input(uint32_t input_dtype); /* luattn_input_dtype */
/* `heads_last`: axis 1 is stored before the last one (logical order stays [batch, heads, len, dim]). */
luattn_status array_new(array *a, DLDataType type, int ndim, const int64_t *shape, bool heads_last, luattn_error *err);
void array_free(array *a);
/* Reads an element by its flat index in logical row-major order; array_at: its address. */
double array_get(const array *a, int64_t flat);
const void *array_at(const array *a, int64_t flat);
void array_set(array *a, int64_t flat, double x);
#define ARRAY_BOOL 6                   /* DLPack's code for bool */
bool array_is_integer(const array *a); /* of any width; a bool is none */
int64_t array_integer(const array *a, int64_t flat);
bool array_set_integer(array *a, int64_t flat, int64_t x); /* false: the type does not hold it */
int64_t array_count(const array *a);
/* Moves an axis to another place among them, in the array alone: its memory stays. */
void array_move_axis(array *a, int from, int to);
/* The DLTensor of an array, with pointers into this very array; NULL: it has no elements. */
const DLTensor *array_tensor(const array *a);

/* Reads an array, and checks everything in the file. The stream must be seekable, and is read to its end;
 * `name` is for messages. */
luattn_status npy_read(const char *path, array *out, luattn_error *err);
luattn_status npy_read_stream(const char *name, FILE *f, array *out, luattn_error *err);
/* Writes bf16, which NumPy lacks, as float32. */
luattn_status npy_write(const char *path, const array *a, luattn_error *err);

/* ---- spec_option.c ---- */

/* Loads the spec of a command line, with dropout of its weights where --dropout asks for it. */
luattn_status spec_option(const cli_options *o, luattn_spec **out, luattn_error *err);

/* ---- problem.c: one call's tensors ---- */

typedef struct cli_problem {
  const luattn_spec *spec;
  luattn_spec_info info;
  int batch, heads, heads_kv, q_len, kv_len, dim,
      dim_v; /* packed: the number of sequences, and the totals of their rows; over a grid: of its places */
  int axes;  /* of the spec's grid; below 2: of a line */
  int extent[2][LUATTN_MAX_AXES]; /* of a grid: of q and of kv, the innermost last */
  luattn_batch *sequences;        /* packed sequences (sequence_ends.h); NULL: entries of equal lengths */
  array ends[2];                  /* int32: 0 and where each ends, of q and of k */
  int longest[2];
  luattn_dtype dtype;
  array q, k, v, dout,
      dlse; /* [batch, heads, len, dim]; packed: [rows, heads, dim]; over a grid its axes in place of len */
  array input[12];
  luattn_scalar scalar[CLI_MAX_PAIRS];
  int num_scalars;
  double scale;
  int num_splits, skip;                    /* as in luattn_args */
  uint64_t query_tile_size, key_tile_size; /* likewise, of forward */
  const unsigned char *kept; /* what the mask keeps, a byte for each score, if known: naive_forward then does
                              * not call the mask */
  bool heads_last;
  bool decode, no_decode; /* luattn_args.decode is LUATTN_DECODE_ALWAYS, .._NEVER */
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks) bool name; /* as in luattn_args */
#include "abi/kernel_facts.def"
  uint64_t seed; /* of dropout: --seed */
} cli_problem;

/* --shape or --head-dim, of which only the sizes are set. */
luattn_status shape_option(const cli_options *o, cli_problem *out, luattn_error *err);

/* What an option asks for that backward lacks, and what to do; NULL: nothing. */
const char *problem_lacks_backward(const cli_options *o);

/* Fills a problem from files where given, with random numbers elsewhere (--seed). `need_dout`: fill dout
 * (random unless given). */
luattn_status problem_read(const luattn_spec *spec, const cli_options *o, bool need_dout, cli_problem *out,
                           luattn_error *err);
void problem_free(cli_problem *p);
/* "B1 H2/2 Sq256 Skv256 D64 Dv64": its sizes, and how many of 256 weights dropout drops. */
enum { PROBLEM_TEXT = 192 };
const char *problem_text(const cli_problem *p, char text[PROBLEM_TEXT]);

/* ---- result.c: what a pass writes, and its arguments ---- */

/* Outputs in `real` (the type of lse and parameter gradients) or `storage`. */
typedef struct cli_result {
  array o, lse, saved, weights /* those of V, if asked for */, dq, dk, dv, input_grad[12], scalar_grads;
} cli_result;
size_t problem_num_saved(const cli_problem *p); /* rows of `saved` */
luattn_status result_new(const cli_problem *p, DLDataType storage, DLDataType real, bool backward, cli_result *out,
                         luattn_error *err);
void result_free(cli_result *r);

/* Arguments that point into a problem and a result; `bind` holds the inputs' bindings and must outlive
 * them. */
typedef struct cli_binding {
  luattn_input inputs[12];
  luattn_random random;
} cli_binding;
/* The class of tiles of the kernel for few queries: by its rows of a kv head, as engines choose it. */
luattn_lengths problem_decode_rows(const cli_problem *p);
bool problem_has_many_rows(const cli_problem *p); /* luattn_target.many_rows */
luattn_args problem_args(const cli_problem *p, const cli_result *r, bool backward, cli_binding *bind);

/* ---- gpu.c: the same on a device ---- */

typedef struct cli_gpu cli_gpu;
luattn_status gpu_open(const cli_options *o, cli_gpu **out, luattn_error *err);
/* The device of --device; without the option a GPU if there is one. *out = NULL: the CPU. */
luattn_status gpu_pick(const cli_options *o, cli_gpu **out, luattn_error *err);
void gpu_close(cli_gpu *g);
const char *gpu_name(const cli_gpu *g);
/* The GPU of --device, which must be given. */
luattn_status gpu_look(const cli_options *o, luattn_device_info *out, int *driver_version, luattn_error *err);
/* Prints what the plans of the last passes say about remembered tiles, if anything. */
void gpu_print_tuning(const cli_gpu *g);
/* Copies the problem to the device, poisons every output with NaN bytes, runs the passes and copies results
 * back. */
luattn_status gpu_run(cli_gpu *g, const cli_problem *p, bool backward, cli_result *r, luattn_error *err);
/* Median milliseconds of forward and (if asked for) backward over `repeat` launches. */
luattn_status gpu_bench(cli_gpu *g, const cli_problem *p, bool backward, int repeat, double *forward_ms,
                        double *backward_ms, luattn_error *err);

/* ---- mask_picture.c ---- */

/* Draws what a query of a grid keeps, and the classes of boxes beside it. */
luattn_status places_draw(const cli_options *o, const cli_problem *p, luattn_error *err);
/* Writes the text to the file of --svg, and frees it. */
luattn_status picture_write(const char *path, char *drawn, luattn_error *err);

/* ---- cmd_bench.c ---- */

/* Counts all scores, over batch and heads, and those that the mask keeps; *error: two standard deviations, where there
 * are too many to evaluate; 0: exact. */
luattn_status bench_kept(const cli_problem *p, double *all, double *kept, double *error, luattn_error *err);
/* FLOPs of a pass with so many scores. */
double bench_flops(const cli_problem *p, luattn_pass pass, double kept);

/* ---- mask_counts.c: the tiles that kernels compute of a mask, and by what means ---- */

/* luattn_target.input_types where an input of any type has the type of q, k and v. */
uint64_t any_types_as(const luattn_spec *spec, luattn_dtype dtype);
/* Kernels of a pass; of o only dtype, family, head dims, and arch, or that of a device. */
luattn_status mask_target(const cli_options *o, const cli_problem *p, luattn_pass pass, luattn_target *out,
                          luattn_error *err);
/* " +- 1.2%", what is unknown of a number; "" if it is exact. */
const char *mask_error_text(double number, double error, char text[32]);
/* "ranges of positions, ..": by what means. */
const char *mask_means_text(const luattn_mask_counts *c);
/* Prints "A of B tiles of MxN (C%), D needed" without an end of line. */
void mask_counts_print(const luattn_mask_counts *c);
luattn_status mask_counts_write(const char *path, const cli_options *o, const char *name, const luattn_mask_counts *c,
                                const size_t picture[3], luattn_error *err);
/* The same over a grid, of which a query keeps so many keys; c: NULL where nothing was counted. */
luattn_status mask_places_write(const char *path, const char *name, const luattn_mask_counts *c,
                                const luattn_mask_places *m, size_t kept, luattn_error *err);

/* ---- naive.c: plain Lua, one score at a time ---- */

/* Refuses a spec from a pipe or a terminal, for commands that read its text twice. */
luattn_status spec_can_be_reread(const char *path, luattn_error *err);

/* Forward by its definition: every hook called in plain Lua with numbers, every score computed. Independent
 * of tracing, tiles and derivatives. Results in double. */
luattn_status naive_forward(const cli_options *o, const cli_problem *p, cli_result *r, luattn_error *err);
/* Evaluates the mask, for cli_problem.kept: batch x heads x q_len x kv_len bytes. */
luattn_status naive_mask(const cli_options *o, const cli_problem *p, unsigned char *kept, luattn_error *err);

/* ---- the subcommands ---- */

int cmd_run(const cli_options *o);
int cmd_check(const cli_options *o);
int cmd_emit(const cli_options *o);
int cmd_plan(const cli_options *o);
int cmd_mask(const cli_options *o);
int cmd_bench(const cli_options *o);
int cmd_tune(const cli_options *o);
int cmd_cache(const cli_options *o);
int cmd_pack(const cli_options *o);
int cmd_warm(const cli_options *o);
int cmd_devices(const cli_options *o);

/* ---- failure.c ---- */

int cli_fail(const luattn_error *err); /* prints `luattn: message`; returns the exit code */
bool cli_has_failed(void);             /* whether it has printed one */

#endif
