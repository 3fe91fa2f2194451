#include "cli/grid.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/parallel.h"

#define MOST_JOBS 1024

enum { VARIANT_BITS = 5 }; /* what makes a kernel another than the plain one: add_variants */

/* The parsed lists of the command line. */
typedef struct choices {
  luattn_target arch[GRID_MAX_CHOICES]; /* arch and ptx */
  luattn_dtype dtype[GRID_MAX_CHOICES];
  int dim[GRID_MAX_CHOICES][2];
  luattn_pass pass[2];
  int num_archs, num_dtypes, num_dims, num_passes, family;
} choices;

typedef luattn_status read_item(choices *c, const char *item, luattn_error *err);

static luattn_status read_list(choices *c, const char *option, const char *text, read_item *read, const int *count,
                               luattn_error *err) {
  for (const char *at = text;;) {
    char item[32];
    const size_t n = strcspn(at, ",");
    if (n == 0 || n >= sizeof item || *count == GRID_MAX_CHOICES)
      return luattn_fail(err, LUATTN_INVALID, "%s: '%s' is not a list of at most %d values with commas between them",
                         option, text, GRID_MAX_CHOICES);
    memcpy(item, at, n);
    item[n] = 0;
    TRY(read(c, item, err));
    if (at[n] == 0) return LUATTN_OK;
    at += n + 1;
  }
}

/* Refuses a repeated spec: its kernels would be compiled, and packed, twice. */
static luattn_status repeated(const char *option, const char *item, luattn_error *err) {
  return luattn_fail(err, LUATTN_INVALID, "%s: '%s' is in the list already; leave it out", option, item);
}

static luattn_status read_arch(choices *c, const char *item, luattn_error *err) {
  c->arch[c->num_archs] = (luattn_target){.struct_size = 0};
  TRY(arch_option(item, &c->arch[c->num_archs], err));
  for (int i = 0; i < c->num_archs; i++)
    if (c->arch[i].arch == c->arch[c->num_archs].arch && c->arch[i].ptx == c->arch[c->num_archs].ptx)
      return repeated("--arch", item, err);
  c->num_archs++;
  return LUATTN_OK;
}

static luattn_status read_dtype(choices *c, const char *item, luattn_error *err) {
  if (!dtype_parse(item, &c->dtype[c->num_dtypes]))
    return luattn_fail(err, LUATTN_INVALID, "--dtype: '%s' is not a type of q, k, v; use f64, f32, bf16 or f16", item);
  for (int i = 0; i < c->num_dtypes; i++)
    if (c->dtype[i] == c->dtype[c->num_dtypes]) return repeated("--dtype", item, err);
  c->num_dtypes++;
  return LUATTN_OK;
}

static luattn_status read_dim(choices *c, const char *item, luattn_error *err) {
  int *dim = c->dim[c->num_dims];
  if (!parse_head_dim(item, dim))
    return luattn_fail(err, LUATTN_INVALID, "--head-dim: '%s' is not a head dim; give 64, or 192x128 for q and v",
                       item);
  for (int i = 0; i < c->num_dims; i++)
    if (c->dim[i][0] == dim[0] && c->dim[i][1] == dim[1]) return repeated("--head-dim", item, err);
  c->num_dims++;
  return LUATTN_OK;
}

/* Refuses --device for a pack: tiles measured on it belong to the cache of the machine that has it. */
static luattn_target of_device(const grid *g, const luattn_device_info *info, const char *name, int driver_version) {
  const bool tuned = g->is_warming && !g->options->no_tuned;
  return (luattn_target){
      .arch = info->arch, .device = tuned ? name : NULL, .driver_version = g->is_warming ? driver_version : 0};
}

/* --device: one of the local GPUs. */
static luattn_status look_at_device(grid *g, choices *c, luattn_error *err) {
  luattn_device_info info;
  int driver_version = 0;
  const cli_options *o = g->options;
  if (o->arch != NULL)
    return luattn_fail(err, LUATTN_INVALID, "--arch: '%s' and --device '%s' both name an architecture; give one",
                       o->arch, o->device);
  TRY(gpu_look(o, &info, &driver_version, err));
  snprintf(g->device[0], sizeof g->device[0], "%s", info.name);
  c->arch[c->num_archs++] = of_device(g, &info, g->device[0], driver_version);
  return LUATTN_OK;
}

/* The devices' architectures. Without a device the user has to name them. */
static luattn_status ask_devices(grid *g, choices *c, luattn_error *err) {
  luattn_driver *driver;
  int count = 0, driver_version = 0;
  luattn_status status = luattn_driver_open(&driver, NULL);
  if (status != LUATTN_OK)
    return luattn_fail(err, LUATTN_INVALID,
                       "--arch: is missing, and there is no GPU here to ask; give sm_80, sm_90a, ..");
  status = luattn_device_count(driver, &count, err);
  if (status == LUATTN_OK) status = luattn_driver_version(driver, &driver_version, err);
  for (int i = 0; i < count && status == LUATTN_OK; i++) {
    luattn_device_info info;
    status = luattn_device_get_info(driver, i, &info, err);
    bool known = status != LUATTN_OK || c->num_archs == GRID_MAX_CHOICES;
    for (int j = 0; j < c->num_archs; j++) known |= c->arch[j].arch == info.arch;
    if (known) continue;
    char *name = g->device[c->num_archs];
    snprintf(name, sizeof g->device[0], "%s", info.name);
    c->arch[c->num_archs++] = of_device(g, &info, name, driver_version);
  }
  luattn_driver_close(driver);
  return status;
}

/* Head dims of --shape, and the classes of its lengths. */
static luattn_status read_shape(grid *g, choices *c, luattn_error *err) {
  cli_problem sizes;
  TRY(shape_option(g->options, &sizes, err));
  c->dim[0][0] = sizes.dim, c->dim[0][1] = sizes.dim_v;
  c->num_dims = 1;
  for (int pass = 0; pass < 2; pass++)
    g->lengths[pass] = 1 + (int)luattn_lengths_of((luattn_pass)pass, sizes.q_len, sizes.kv_len);
  return LUATTN_OK;
}

static luattn_status read_lengths(grid *g, luattn_error *err) {
  int lengths;
  TRY(lengths_option(g->options, &lengths, err));
  if (lengths != 0) g->lengths[0] = g->lengths[1] = lengths;
  return LUATTN_OK;
}

static luattn_status read_choices(grid *g, choices *c, luattn_error *err) {
  const cli_options *o = g->options;
  if (o->jobs < 0 || o->jobs > MOST_JOBS)
    return luattn_fail(err, LUATTN_INVALID,
                       "--jobs: is %ld, expected 1 to %d, or 0 for as many as there are processors", o->jobs,
                       MOST_JOBS);
  *c = (choices){.pass = {LUATTN_FORWARD, LUATTN_BACKWARD}, .num_passes = 2};
  if (o->device != NULL)
    TRY(look_at_device(g, c, err));
  else if (o->arch == NULL)
    TRY(ask_devices(g, c, err));
  else
    TRY(read_list(c, "--arch", o->arch, read_arch, &c->num_archs, err));
  TRY(read_list(c, "--dtype", o->dtype != NULL ? o->dtype : "bf16", read_dtype, &c->num_dtypes, err));
  if (o->shape != NULL)
    TRY(read_shape(g, c, err));
  else
    TRY(read_list(c, "--head-dim", o->head_dim != NULL ? o->head_dim : "128", read_dim, &c->num_dims, err));
  TRY(read_lengths(g, err));
  TRY(family_option(o, &c->family, err));
  if (o->pass == NULL) return LUATTN_OK;
  c->num_passes = 1;
  return pass_option(o, &c->pass[0], err);
}

/* Kernel k in the grid's order. */
static void place_kernel(const grid *g, const choices *c, size_t k, grid_kernel *out) {
  *out = (grid_kernel){.target = {.struct_size = sizeof out->target}};
  out->target.pass = c->pass[k % (size_t)c->num_passes];
  k /= (size_t)c->num_passes;
  const luattn_target *arch = &c->arch[k % (size_t)c->num_archs];
  out->target.arch = arch->arch;
  out->target.ptx = arch->ptx;
  out->target.device = arch->device;
  out->target.driver_version = arch->driver_version;
  k /= (size_t)c->num_archs;
  const int *dim = c->dim[k % (size_t)c->num_dims];
  out->target.head_dim = dim[0];
  out->target.head_dim_v = dim[1];
  k /= (size_t)c->num_dims;
  out->target.dtype = c->dtype[k % (size_t)c->num_dtypes];
  out->target.family = c->family;
  out->target.cache_dir = g->options->cache_dir;
  out->target.deterministic = g->options->deterministic;
  out->target.one_code = !g->is_warming; /* packs load one module; compiling other images keeps all cores busy */
  out->spec = k / (size_t)c->num_dtypes;
  /* All gradients, as the engine will ask for. In a pack such an image also serves queries for fewer. */
  if (g->is_warming && out->target.pass == LUATTN_BACKWARD) out->target.wants = luattn_spec_wants(g->spec[out->spec]);
}

/* What makes it another kernel than the plain one: ", packed, few queries". */
static const char *variants_of(const luattn_target *t, char out[80]) {
  size_t used = 0;
  out[0] = 0;
#define KERNEL_UNPACKED(name, value, says, asked_by, are_for)
#define KERNEL_VARIANT(name, value, says)                                      \
  do {                                                                         \
    const int64_t x = t->name;                                                 \
    if (x != 0) used += (size_t)snprintf(out + used, 80 - used, ", %s", says); \
  } while (0);
#include "abi/kernel_facts.def"
  return out;
}

/* Adds the kernels of --packed, --pages, --decode, --out-f32 and --grad-f32 that go with the last one: of each with
 * each. Pages and decode are of forward alone, and results in float32 of half types. */
static void add_variants(grid *g, int pages) {
  const cli_options *o = g->options;
  const grid_kernel *plain = &g->kernel[g->num_kernels - 1];
  const bool forward = plain->target.pass == LUATTN_FORWARD,
             is_half = plain->target.dtype == LUATTN_BF16 || plain->target.dtype == LUATTN_F16;
  const bool may[VARIANT_BITS] = {o->packed, pages != 0 && forward, o->decode && forward, o->out_f32 && is_half,
                                  o->grad_f32 && is_half && !forward};
  for (int i = 1; i < 1 << VARIANT_BITS; i++) {
    bool has[VARIANT_BITS], may_all = true;
    for (int j = 0; j < VARIANT_BITS; j++) has[j] = (i >> j & 1) != 0, may_all &= may[j] || !has[j];
    if (!may_all) continue;
    grid_kernel *k = &g->kernel[g->num_kernels++];
    *k = *plain;
    k->target.packed = has[0], k->target.pages = has[1] ? pages : 0, k->target.decode = has[2];
    k->target.out_f32 = has[3], k->target.grad_f32 = has[4];
  }
}

static luattn_status read_pages(const cli_options *o, int *pages, luattn_error *err) {
  *pages = 0;
  if (o->pages == NULL) return LUATTN_OK;
  if (strcmp(o->pages, "1") != 0 && strcmp(o->pages, "8") != 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "--pages: '%s' is not 1, for pages of any size, or 8, for sizes that are multiples of 8",
                       o->pages);
  *pages = o->pages[0] - '0';
  return LUATTN_OK;
}

/* Refuses two specs of one name: a program that asks for it could not tell them apart. */
static luattn_status check_names(const grid *g, luattn_error *err) {
  luattn_spec_info a, b;
  for (size_t i = 0; i < g->num_specs; i++)
    for (size_t j = 0; j < i; j++) {
      luattn_spec_get_info(g->spec[i], &a);
      luattn_spec_get_info(g->spec[j], &b);
      if (strcmp(a.name, b.name) == 0)
        return luattn_fail(err, LUATTN_INVALID, "%s: its name '%s' is that of %s, too; give it another",
                           g->options->specs[i], a.name, g->options->specs[j]);
    }
  return LUATTN_OK;
}

/* Checked before anything is compiled. */
static luattn_status check_passes(const grid *g, const choices *c, luattn_error *err) {
  luattn_spec_info info;
  bool backward = false;
  for (int i = 0; i < c->num_passes; i++) backward |= c->pass[i] == LUATTN_BACKWARD;
  for (size_t i = 0; i < g->num_specs && backward; i++) {
    luattn_spec_get_info(g->spec[i], &info);
    if (!info.has_backward)
      return luattn_fail(err, LUATTN_UNSUPPORTED, "%s; or compile forward alone, with --pass forward",
                         info.why_no_backward);
  }
  return LUATTN_OK;
}

luattn_status grid_open(const cli_options *o, grid *g, luattn_error *err) {
  choices c;
  int pages;
  *g = (grid){.options = o, .is_warming = g->is_warming, .has_bar = isatty(STDERR_FILENO) != 0};
  TRY(read_choices(g, &c, err));
  TRY(read_pages(o, &pages, err));
  g->spec = calloc((size_t)o->num_specs, sizeof *g->spec);
  if (g->spec == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "out of memory");
  for (int i = 0; i < o->num_specs; i++) {
    TRY(luattn_spec_load(o->specs[i], NULL, &g->spec[i], err));
    g->num_specs++;
  }
  TRY(check_names(g, err));
  TRY(check_passes(g, &c, err));
  const size_t count = g->num_specs * (size_t)(c.num_dtypes * c.num_dims) * (size_t)(c.num_archs * c.num_passes);
  g->kernel = calloc(count << VARIANT_BITS, sizeof *g->kernel);
  if (g->kernel == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "out of memory");
  for (size_t k = 0; k < count; k++) {
    place_kernel(g, &c, k, &g->kernel[g->num_kernels++]);
    add_variants(g, pages);
  }
  return LUATTN_OK;
}

static luattn_status compile_image(grid *g, grid_kernel *k, luattn_lengths lengths, bool *is_for_all,
                                   luattn_error *err) {
  luattn_compile_report report = {0};
  luattn_target target = k->target;
  target.lengths = lengths;
  TRY(luattn_compile(g->spec[k->spec], &target, &k->image[lengths], &report, err));
  *is_for_all = report.every_length != 0;
  k->from_cache += report.cache_hit != 0;
  if (g->is_warming && !report.is_kept) {
    const char *why = strstr(report.plan, "cache: ");
    if (why == NULL) why = "it could not be kept in the cache";
    return luattn_fail(err, LUATTN_IO, "%.*s", (int)strcspn(why, "\n"), why);
  }
  if (!g->options->with_sources) return LUATTN_OK;
  return luattn_emit_source(g->spec[k->spec], &target, k->image[lengths], &k->source[lengths], err);
}

/* Keeps decode's kernel for many rows in the cache; packs do not tell it from the one for fewer. */
static luattn_status warm_many_rows(grid *g, grid_kernel *k, luattn_error *err) {
  luattn_compile_report report = {0};
  luattn_target target = k->target;
  luattn_image *image;
  target.lengths = LUATTN_LONG, target.many_rows = 1;
  TRY(luattn_compile(g->spec[k->spec], &target, &image, &report, err));
  luattn_image_free(image);
  k->many_rows = 1;
  k->from_cache += report.cache_hit != 0;
  return LUATTN_OK;
}

static luattn_status compile_one(void *user, size_t index, luattn_error *err) {
  grid *g = user;
  grid_kernel *k = &g->kernel[index];
  luattn_error inner, told;
  char variants[80];
  bool is_for_all = false;
  const int only = k->target.decode != 0
                       ? 0
                       : g->lengths[k->target.pass]; /* decode has classes of rows, of which --shape says nothing */
  luattn_status status = compile_image(g, k, only != 0 ? (luattn_lengths)(only - 1) : LUATTN_LONG, &is_for_all, &inner);
  if (status == LUATTN_OK && !is_for_all && only == 0) status = compile_image(g, k, LUATTN_SHORT, &is_for_all, &inner);
  if (status == LUATTN_OK && g->is_warming && k->target.decode != 0) status = warm_many_rows(g, k, &inner);
  if (status == LUATTN_OK) return status;
  luattn_fail(&told, status, "%s, %s, head dim %dx%d, %s_%d, %s%s: %s", g->options->specs[k->spec],
              kernel_dtype_name(k->target.dtype), k->target.head_dim, k->target.head_dim_v,
              k->target.ptx ? "compute" : "sm", k->target.arch, kernel_pass_name(k->target.pass),
              variants_of(&k->target, variants), inner.message);
  if (status == LUATTN_UNSUPPORTED && variants[0] != 0) {
    k->why_not = strdup(told.message);
    return k->why_not != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "out of memory");
  }
  return luattn_fail(err, status, "%s", told.message);
}

static void draw_bar(void *user, size_t done, size_t count) {
  static const char full[] = "########################################";
  const grid *g = user;
  const int width = (int)(sizeof full - 1), filled = (int)((size_t)width * done / count);
  if (!g->has_bar) return;
  fprintf(stderr, "\r[%-*.*s] %zu/%zu kernels", width, filled, full, done, count);
  if (done == count) fprintf(stderr, "\n");
  fflush(stderr);
}

luattn_status grid_compile(grid *g, luattn_error *err) {
  const luattn_status status = parallel_run(g->num_kernels, (int)g->options->jobs, compile_one, draw_bar, g, err);
  if (status != LUATTN_OK && g->has_bar) fprintf(stderr, "\n");
  for (size_t i = 0; i < g->num_kernels && status == LUATTN_OK; i++) {
    for (int l = 0; l < 2; l++) g->num_images += g->kernel[i].image[l] != NULL;
    g->num_images += (size_t)g->kernel[i].many_rows;
    g->from_cache += (size_t)g->kernel[i].from_cache;
    if (g->kernel[i].why_not != NULL) fprintf(stderr, "luattn: left out: %s\n", g->kernel[i].why_not);
  }
  return status;
}

void grid_close(grid *g) {
  for (size_t i = 0; i < g->num_kernels; i++) {
    free(g->kernel[i].why_not);
    for (int l = 0; l < 2; l++) {
      luattn_image_free(g->kernel[i].image[l]);
      luattn_text_free(g->kernel[i].source[l]);
    }
  }
  for (size_t i = 0; i < g->num_specs; i++) luattn_spec_free(g->spec[i]);
  free(g->kernel);
  free(g->spec);
}
