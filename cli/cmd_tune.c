/* cmd_tune.c: luattn tune: measures the candidate tiles of a spec, and stores the best with the cache. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/gpu.h"
#include "cli/tune.h"
#include "gen/cache/cache.h"

#define TOKENS 8192     /* batch x length where --shape does not say */
#define WIDTH 2048      /* heads x head_dim, likewise */
#define LEAST_GAIN 1.01 /* medians of two runs differ that much */

typedef struct shape {
  char text[96];             /* as --shape */
  luattn_lengths lengths[2]; /* of a pass */
  double flops[2];           /* of a pass */
  bool exact;
} shape;

typedef struct tuning {
  const cli_options *o;
  luattn_spec *spec;
  cli_gpu *gpu;
  int num_shapes, passes, axes; /* axes: of the spec's grid; below 2: of a line */
  shape shape[TUNE_MAX_SHAPES];
  tune_field field[2]; /* by luattn_pass */
  double start;
} tuning;

/* ---- options ---- */

static luattn_status read_lengths(tuning *t, luattn_error *err) {
  const cli_options *o = t->o;
  int dim[2] = {64, 64}, length[TUNE_MAX_SHAPES] = {1024, 8192}, count = 2;
  if (o->head_dim != NULL && !parse_head_dim(o->head_dim, dim))
    return luattn_fail(err, LUATTN_INVALID, "--head-dim: '%s' is not D or D,Dv; give one or two positive sizes",
                       o->head_dim);
  const bool is_short = o->lengths != NULL && strcmp(o->lengths, "short") == 0,
             is_long = o->lengths != NULL && strcmp(o->lengths, "long") == 0;
  if (is_short || is_long)
    length[0] = length[is_long], count = 1;
  else if (o->lengths != NULL)
    count = parse_sizes(o->lengths, TUNE_MAX_SHAPES, length);
  for (int i = 0; i < count; i++)
    if (length[i] < 1) count = 0;
  if (count == 0)
    return luattn_fail(
        err, LUATTN_INVALID,
        "--lengths: '%s' is not S,S,..; give short, long, or up to %d positive lengths such as 1024,8192", o->lengths,
        TUNE_MAX_SHAPES);
  for (int i = 0; i < count; i++) {
    const int batch = length[i] < TOKENS ? TOKENS / length[i] : 1, heads = dim[0] < WIDTH ? WIDTH / dim[0] : 1;
    snprintf(t->shape[i].text, sizeof t->shape[i].text, "%d,%d,%d,%d,%d,%d,%d", batch, heads, heads, length[i],
             length[i], dim[0], dim[1]);
  }
  t->num_shapes = count;
  return LUATTN_OK;
}

static luattn_status read_shapes(tuning *t, luattn_error *err) {
  const cli_options *o = t->o;
  if (t->axes > 1 && (o->lengths != NULL || o->head_dim != NULL || o->shape == NULL))
    return luattn_fail(err, LUATTN_INVALID,
                       "--shape: %s, and the spec is over a grid of %d axes, whose pairs of boxes are tuned for the "
                       "extents of a call; give them, as in --shape 1,24,24,%s,128",
                       o->shape == NULL ? "is missing" : "goes without --lengths and --head-dim", t->axes,
                       t->axes == 2   ? "128x128,128x128"
                       : t->axes == 3 ? "30x48x80,30x48x80"
                                      : "4x30x48x80,4x30x48x80");
  if (o->shape == NULL) return read_lengths(t, err);
  if (o->lengths != NULL || o->head_dim != NULL)
    return luattn_fail(err, LUATTN_INVALID, "--shape: '%s' says what %s '%s' says too; give one of them", o->shape,
                       o->lengths != NULL ? "--lengths" : "--head-dim", o->lengths != NULL ? o->lengths : o->head_dim);
  if (strlen(o->shape) >= sizeof t->shape[0].text)
    return luattn_fail(err, LUATTN_INVALID, "--shape: '%.40s..' is longer than %zu characters", o->shape,
                       sizeof t->shape[0].text - 1);
  memcpy(t->shape[0].text, o->shape, strlen(o->shape) + 1);
  t->num_shapes = 1;
  return LUATTN_OK;
}

static luattn_status check_options(const cli_options *o, luattn_error *err) {
  char dir[4096];
  if (o->repeat < 3 || o->repeat > 1000)
    return luattn_fail(err, LUATTN_INVALID, "--repeat: %ld rounds are not possible; use 3 to 1000", o->repeat);
  if (o->time_limit < 1)
    return luattn_fail(err, LUATTN_INVALID, "--time-limit: %ld seconds are not possible; give at least 1",
                       o->time_limit);
  if (o->device != NULL && strcmp(o->device, "cpu") == 0)
    return luattn_fail(err, LUATTN_INVALID, "--device: tune measures kernels, and 'cpu' has none; give cuda or cuda:N");
  if (o->arch != NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "--arch: '%s' is given, and tune measures on the GPU that is there; add --dry-run, or leave it "
                       "out",
                       o->arch);
  TRY(cache_resolve(o->cache_dir, dir, sizeof dir, err));
  if (dir[0] == 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "tune: there is no cache on disk to remember the best tiles beside, as its directory is "
                       "empty; name one with --cache-dir or LUATTN_CACHE_DIR");
  const char *distrust = cache_distrust(dir);
  if (distrust != NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "tune: the best tiles cannot be remembered in %s: %s; name another directory with "
                       "--cache-dir or LUATTN_CACHE_DIR",
                       dir, distrust);
  return LUATTN_OK;
}

static luattn_status open_gpu(tuning *t, luattn_error *err) {
  cli_options o = *t->o;
  luattn_error why;
  o.lengths = NULL;
  o.no_tuned = true; /* forward, which writes what backward reads, uses the plan's own tiles */
  const luattn_status status = gpu_open(&o, &t->gpu, &why);
  if (status == LUATTN_OK) return LUATTN_OK;
  return luattn_fail(err, status,
                     "tune: measures on a GPU, and there is none that it can use: %s. Tune on the machine whose GPU "
                     "will run the spec; without it, the plan chooses by its tables",
                     why.message);
}

/* ---- compiling and measuring ---- */

/* Kernels for few queries are tuned for one class of rows: a shape of another one would measure tiles that calls of it
 * do not use. */
static luattn_status check_rows(const tuning *t, bool many, luattn_error *err) {
  for (int i = 1; i < t->num_shapes; i++) {
    cli_problem sizes;
    cli_options o = *t->o;
    o.shape = t->shape[i].text, o.head_dim = NULL;
    TRY(shape_option(&o, &sizes, err));
    if (problem_has_many_rows(&sizes) != many)
      return luattn_fail(
          err, LUATTN_INVALID,
          "tune: shape: %s has more than %d rows of a kv head, and %s has not; with --decode tune them apart",
          t->shape[many ? 0 : i].text, LUATTN_DECODE_MANY, t->shape[many ? i : 0].text);
  }
  return LUATTN_OK;
}

/* Over a grid candidates are made of a problem's extents. */
static luattn_status compile_boxes(tuning *t, tune_field *f, double deadline, luattn_error *err) {
  cli_problem p;
  cli_options o = *t->o;
  o.mask_only = true;
  TRY(problem_read(t->spec, &o, false, &p, err));
  const luattn_status status = tune_compile_boxes(t->gpu, f, &p, deadline, err);
  problem_free(&p);
  return status;
}

static luattn_status compile_all(tuning *t, luattn_error *err) {
  cli_problem sizes;
  cli_options o = *t->o;
  luattn_target target = {.struct_size = sizeof target,
                          .dtype = LUATTN_BF16,
                          .cache_dir = o.cache_dir,
                          .deterministic = o.deterministic,
                          .decode = o.decode};
  o.shape = t->shape[0].text, o.head_dim = NULL;
  TRY(shape_option(&o, &sizes, err));
  TRY(dtype_option(&o, &target.dtype, err));
  TRY(family_option(&o, &target.family, err));
  target.arch = t->gpu->info.arch;
  int driver_version;
  TRY(luattn_driver_version(t->gpu->driver, &driver_version, err));
  target.driver_version = driver_version;
  target.head_dim = sizes.dim;
  target.head_dim_v = sizes.dim_v;
  target.many_rows = o.decode && problem_has_many_rows(&sizes);
  target.input_types = any_types_as(t->spec, target.dtype); /* random inputs have the type of q */
  if (o.decode) TRY(check_rows(t, target.many_rows, err));
  for (int pass = 0; pass < t->passes; pass++) {
    tune_field *f = &t->field[pass];
    f->spec = t->spec;
    f->target = target;
    f->target.pass = (luattn_pass)pass;
    if (pass == LUATTN_BACKWARD) f->target.decode = 0; /* which is of forward */
    const double deadline = t->start + (double)t->o->time_limit / 2 * (pass + 1) / t->passes;
    TRY(t->axes > 1 ? compile_boxes(t, f, deadline, err) : tune_compile(t->gpu, f, deadline, err));
  }
  return LUATTN_OK;
}

static luattn_status measure_all(tuning *t, luattn_error *err) {
  for (int i = 0; i < t->num_shapes; i++) {
    const double now = tune_now(), end = t->start + (double)t->o->time_limit;
    cli_options o = *t->o;
    cli_problem p;
    shape *s = &t->shape[i];
    o.shape = s->text, o.head_dim = NULL;
    fprintf(stderr, "tune: measuring %s\n", s->text);
    TRY(problem_read(t->spec, &o, t->passes > 1, &p, err));
    double all, kept = 0, error = 0;
    luattn_status status = bench_kept(&p, &all, &kept, &error, err);
    s->exact = error == 0;
    for (int pass = 0; pass < t->passes; pass++) s->lengths[pass] = tune_lengths(&t->field[pass], &p);
    for (int pass = 0; pass < 2; pass++) s->flops[pass] = bench_flops(&p, (luattn_pass)pass, kept);
    if (status == LUATTN_OK)
      status =
          tune_measure(t->gpu, &p, t->field, t->passes, i, (int)o.repeat, now + (end - now) / (t->num_shapes - i), err);
    problem_free(&p);
    TRY(status);
  }
  return LUATTN_OK;
}

/* ---- results ---- */

static luattn_lengths lengths_of(const tuning *t, int pass, int i) { return t->shape[i].lengths[pass]; }

static void print_row(const tuning *t, const tune_candidate *c, int pass, int i, double own_ms) {
  char name[TUNE_NAME], compiled[32] = "cached";
  const tune_field *f = &t->field[pass];
  const shape *s = &t->shape[i];
  printf("  %-34s", tune_name(f, c, name));
  if (c->kernel == NULL || c->is_wrong) {
    printf("  %s\n", c->why);
    return;
  }
  if (c->compile_ms > 0) snprintf(compiled, sizeof compiled, "%.0f", c->compile_ms);
  printf("  %9u  %6u  %10s  %9.4f  %8.1f  %8.3f\n", c->registers, c->local_bytes, compiled, c->ms[i],
         s->flops[pass] / c->ms[i] / 1e9, own_ms / c->ms[i]);
}

static void print_table(const tuning *t, int pass, int i) {
  const tune_field *f = &t->field[pass];
  const luattn_lengths lengths = lengths_of(t, pass, i);
  const tune_candidate *own = tune_default(f, lengths);
  luattn_spec_info info;
  luattn_spec_get_info(t->spec, &info);
  printf("\n%s %s on %s, %s, shape %s (%s lengths)%s\n", info.name, kernel_pass_name((uint32_t)pass), gpu_name(t->gpu),
         kernel_dtype_name(f->target.dtype), t->shape[i].text, lengths == LUATTN_SHORT ? "short" : "long",
         t->shape[i].exact ? "" : ", its scores counted in a sample of tiles");
  printf("  %-34s  registers   local  compile ms         ms   TFLOP/s  of plan's\n", "tiles");
  print_row(t, own, pass, i, own->ms[i]);
  for (int j = 0; j < f->count; j++)
    if (tune_competes(f, j, lengths)) print_row(t, &f->candidate[j], pass, i, own->ms[i]);
}

/* The speedup over the plan's choice, as the geometric mean over the shapes of a class; 0: not measured. */
static double gain_of(const tuning *t, int pass, luattn_lengths lengths, const tune_candidate *c) {
  const tune_candidate *own = tune_default(&t->field[pass], lengths);
  double sum = 0;
  int count = 0;
  for (int i = 0; i < t->num_shapes; i++) {
    if (lengths_of(t, pass, i) != lengths) continue;
    if (c->kernel == NULL || c->is_wrong || c->ms[i] <= 0) return 0;
    sum += log(own->ms[i] / c->ms[i]);
    count++;
  }
  return count > 0 ? exp(sum / count) : 0;
}

static luattn_status store_boxes(const tuning *t, const tune_candidate *best, const luattn_target *of, double gain,
                                 char *path, size_t size, luattn_error *err) {
  cli_problem p;
  cli_options o = *t->o;
  luattn_target target = *of;
  tune_call call;
  o.mask_only = true;
  TRY(problem_read(t->spec, &o, false, &p, err));
  if (best != NULL)
    target.query_tile_size = best->boxes.query_tile_size, target.key_tile_size = best->boxes.key_tile_size;
  const luattn_status status =
      luattn_tuned_boxes_store(t->spec, &target, tune_extents(&p, &call), gain, path, size, err);
  problem_free(&p);
  return status;
}

/* Removes the record if its tiles are no faster than the plan's choice. */
static luattn_status remember(const tuning *t, int pass, luattn_lengths lengths, luattn_error *err) {
  static const char *const classes[] = {[LUATTN_LONG] = "long", [LUATTN_SHORT] = "short"};
  const tune_field *f = &t->field[pass];
  const tune_candidate *own = tune_default(f, lengths), *best = own;
  double gain = gain_of(t, pass, lengths, own);
  char name[TUNE_NAME], path[4096];
  luattn_target target = f->target;
  if (gain == 0) return LUATTN_OK; /* no shape of this class */
  for (int j = 0; j < f->count; j++) {
    if (!tune_competes(f, j, lengths)) continue;
    const double g = gain_of(t, pass, lengths, &f->candidate[j]);
    if (g > gain) gain = g, best = &f->candidate[j];
  }
  target.lengths = lengths;
  target.device = gpu_name(t->gpu);
  const bool is_faster = best != own && gain >= LEAST_GAIN;
  if (t->axes <= 1) {
    target.tiles = is_faster ? &best->tiles : NULL;
    TRY(luattn_tuned_store(t->spec, &target, gain, path, sizeof path, err));
    printf("%s, %s lengths: ", kernel_pass_name((uint32_t)pass), classes[lengths]);
  } else {
    TRY(store_boxes(t, is_faster ? best : NULL, &target, gain, path, sizeof path, err));
    printf("%s, these extents: ", kernel_pass_name((uint32_t)pass));
  }
  if (is_faster)
    printf("%s is %.3f times as fast as the plan's choice; remembered in %s\n", tune_name(f, best, name), gain, path);
  else
    printf("nothing is %.0f %% faster than the plan's choice, %s; nothing is remembered\n", 100 * (LEAST_GAIN - 1),
           tune_name(f, own, name));
  return LUATTN_OK;
}

/* Wrong results are a bug of luattn: stop rather than go on. */
static luattn_status refuse_wrong(const tuning *t, luattn_error *err) {
  char name[TUNE_NAME];
  for (int pass = 0; pass < t->passes; pass++)
    for (int j = 0; j < t->field[pass].count; j++) {
      const tune_field *f = &t->field[pass];
      const tune_candidate *c = &f->candidate[j];
      if (c->is_wrong)
        return luattn_fail(err, LUATTN_INTERNAL,
                           "tune: %s: %s; nothing is remembered; this is an error in luattn: report it with the spec "
                           "and the table",
                           tune_name(f, c, name), c->why);
    }
  return LUATTN_OK;
}

static luattn_status tune(tuning *t, luattn_error *err) {
  TRY(check_options(t->o, err));
  TRY(read_shapes(t, err));
  TRY(open_gpu(t, err));
  TRY(compile_all(t, err));
  TRY(measure_all(t, err));
  for (int pass = 0; pass < t->passes; pass++)
    for (int i = 0; i < t->num_shapes; i++) print_table(t, pass, i);
  printf("\n");
  TRY(refuse_wrong(t, err));
  for (int pass = 0; pass < t->passes; pass++) {
    TRY(remember(t, pass, LUATTN_SHORT, err));
    TRY(remember(t, pass, LUATTN_LONG, err));
  }
  printf("%.0f s\n", tune_now() - t->start);
  return LUATTN_OK;
}

/* ---- without a GPU ---- */

static void print_boxes(const tuning *t, const tune_field *f) {
  char name[TUNE_NAME];
  luattn_spec_info info;
  luattn_spec_get_info(t->spec, &info);
  printf("%s %s for sm_%d, %s, shape %s: %d pairs of boxes, of a head with %.0f scores kept\n", info.name,
         kernel_pass_name(f->target.pass), f->target.arch, kernel_dtype_name(f->target.dtype), t->o->shape, f->count,
         f->candidate[0].boxes.kept);
  printf("  %-26s  computed/kept  full boxes  predicted time\n", "queries by keys");
  for (int i = 0; i < f->count; i++) {
    const luattn_box_pair *pair = &f->candidate[i].boxes;
    printf("  %-26s  %13.3f  %9.1f%%  %14.3f%s\n", tune_boxes_name(pair, f->axes, name),
           pair->kept > 0 ? pair->computed / pair->kept : 0, 100 * pair->full, pair->predicted,
           i == 0            ? "  what calls take"
           : pair->boxes > 0 ? "  calls choose from it"
                             : "");
  }
}

static luattn_status print_tiles(const tuning *t, const tune_field *f, const char *of, luattn_error *err) {
  luattn_tiles list[TUNE_MAX_CANDIDATES];
  char name[TUNE_NAME];
  luattn_spec_info info;
  int count = 0;
  luattn_spec_get_info(t->spec, &info);
  TRY(luattn_plan_candidates(t->spec, &f->target, list, TUNE_MAX_CANDIDATES, &count, err));
  printf("%s %s for sm_%d, %s, shape %s: %d tiles\n", info.name, kernel_pass_name(f->target.pass), f->target.arch,
         kernel_dtype_name(f->target.dtype), of, count);
  for (int i = 0; i < count; i++) printf("  %s\n", tune_tiles_name(&list[i], name));
  return LUATTN_OK;
}

/* Lists what tune would measure. */
static luattn_status dry_run(tuning *t, luattn_error *err) {
  cli_options o = *t->o;
  cli_problem p;
  TRY(read_shapes(t, err));
  o.shape = t->shape[0].text, o.head_dim = o.lengths = NULL, o.mask_only = true;
  TRY(problem_read(t->spec, &o, false, &p, err));
  luattn_status status = LUATTN_OK;
  for (int pass = 0; pass < t->passes && status == LUATTN_OK; pass++) {
    tune_field *f = &t->field[pass];
    f->spec = t->spec;
    status = mask_target(&o, &p, (luattn_pass)pass, &f->target, err);
    if (pass == LUATTN_FORWARD) f->target.decode = o.decode;
    if (status == LUATTN_OK && t->axes <= 1)
      status = print_tiles(t, f, o.shape, err);
    else if (status == LUATTN_OK)
      status = tune_list_boxes(f, &p, err);
    if (status == LUATTN_OK && t->axes > 1) print_boxes(t, f);
  }
  problem_free(&p);
  return status;
}

int cmd_tune(const cli_options *given) {
  luattn_error err;
  cli_options o = *given;
  tuning *t = calloc(1, sizeof *t);
  luattn_status status = t != NULL ? LUATTN_OK : luattn_fail(&err, LUATTN_NO_MEMORY, "tune: out of memory");
  if (o.dtype == NULL) o.dtype = "bf16";
  if (status == LUATTN_OK) {
    t->o = &o;
    t->passes = o.backward ? 2 : 1;
    t->start = tune_now();
    status = luattn_spec_load(o.spec, NULL, &t->spec, &err);
    if (status == LUATTN_OK && luattn_spec_form(t->spec) == LUATTN_FORM_LINEAR)
      status = luattn_fail(&err, LUATTN_UNSUPPORTED,
                           "tune: %s: is of linear attention, whose kernels have no tiles to choose between, and whose "
                           "segments follow a call's heads and tokens; luattn emit --stage plan says how",
                           o.spec);
    if (status == LUATTN_OK) t->axes = luattn_spec_grid(t->spec, NULL);
    if (status == LUATTN_OK) status = o.dry_run ? dry_run(t, &err) : tune(t, &err);
    for (int pass = 0; pass < t->passes; pass++) tune_close(&t->field[pass]);
    gpu_close(t->gpu);
    luattn_spec_free(t->spec);
  }
  free(t);
  return status == LUATTN_OK ? 0 : cli_fail(&err);
}
