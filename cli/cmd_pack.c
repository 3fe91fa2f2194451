/* cmd_pack.c: luattn pack: writes packs, and lists their entries. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/grid.h"
#include "luattn/pack.h"

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- writing ---- */

static luattn_status read_text(const char *path, char **text, size_t *size, luattn_error *err) {
  struct stat st;
  FILE *f = fopen(path, "rb");
  *text = f != NULL && fstat(fileno(f), &st) == 0 ? malloc((size_t)st.st_size + 1) : NULL;
  *size = *text != NULL ? fread(*text, 1, (size_t)st.st_size, f) : 0;
  if (f != NULL) fclose(f);
  if (*text != NULL && *size == (size_t)st.st_size) return LUATTN_OK;
  free(*text);
  *text = NULL;
  return luattn_fail(err, LUATTN_IO, "%s: cannot be read again for the pack", path);
}

static void collect_image(const grid_kernel *k, luattn_lengths lengths, luattn_pack_item *all, luattn_pack_item *item,
                          size_t *count) {
  if (k->image[lengths] == NULL) return;
  all->kind = LUATTN_PACK_IMAGE;
  all->image = k->image[lengths];
  all->lengths = k->image[LUATTN_SHORT] == NULL ? 0 : 1 + (int)lengths;
  all->text = NULL;
  item[(*count)++] = *all;
  if (k->source[lengths] == NULL) return;
  all->kind = LUATTN_PACK_SOURCE;
  all->text = k->source[lengths];
  all->text_size = strlen(k->source[lengths]);
  item[(*count)++] = *all;
}

/* Items in the grid's order: each spec before its images, each image followed by its source. */
static luattn_status collect(const grid *g, luattn_pack_item *item, size_t *count, luattn_error *err) {
  const cli_options *o = g->options;
  const size_t kernels = g->num_kernels / g->num_specs;
  for (size_t s = 0; s < g->num_specs; s++) {
    luattn_spec_info info;
    luattn_spec_get_info(g->spec[s], &info);
    luattn_pack_item all = {.spec_name = info.name, .spec_hash = {info.hash[0], info.hash[1]}};
    if (o->with_specs) {
      char *text;
      all.kind = LUATTN_PACK_SPEC;
      TRY(read_text(o->specs[s], &text, &all.text_size, err));
      all.text = text; /* freed by free_texts */
      item[(*count)++] = all;
    }
    for (size_t k = s * kernels; k < (s + 1) * kernels; k++)
      for (int lengths = LUATTN_LONG; lengths <= LUATTN_SHORT; lengths++)
        collect_image(&g->kernel[k], (luattn_lengths)lengths, &all, item, count);
  }
  return LUATTN_OK;
}

static void free_texts(luattn_pack_item *item, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (item[i].kind == LUATTN_PACK_SPEC) free((void *)(uintptr_t)item[i].text);
}

static luattn_status write_pack(const grid *g, luattn_error *err) {
  int major, minor;
  char nvrtc[32];
  size_t count = 0;
  TRY(luattn_nvrtc_version(NULL, &major, &minor, err));
  snprintf(nvrtc, sizeof nvrtc, "%d.%d", major, minor);
  luattn_pack_item *item = calloc(g->num_specs + 2 * g->num_images, sizeof *item);
  if (item == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "out of memory");
  luattn_status status = collect(g, item, &count, err);
  if (status == LUATTN_OK) status = luattn_pack_write(g->options->pack, nvrtc, item, count, err);
  free_texts(item, count);
  free(item);
  return status;
}

/* Checks what luattn_pack_write would refuse, before minutes of compiling. */
static luattn_status check_output(const char *path, luattn_error *err) {
  const char *slash = strrchr(path, '/');
  char folder[4096];
  struct stat st;
  if (path[0] == 0)
    return luattn_fail(err, LUATTN_INVALID, "-o: is empty; name the file to write, such as model.luapack");
  if (slash != NULL && slash[1] == 0)
    return luattn_fail(err, LUATTN_INVALID, "-o: '%s' names a folder; name a file in it, such as model.luapack", path);
  if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
    return luattn_fail(err, LUATTN_INVALID, "-o: '%s' is %s", path,
                       S_ISLNK(st.st_mode)   ? "a symbolic link; name the file that it points to"
                       : S_ISDIR(st.st_mode) ? "a folder; name a file in it, such as model.luapack"
                                             : "a device, a pipe or a socket; name a regular file or a new one");
  snprintf(folder, sizeof folder, "%.*s",
           slash == NULL   ? 1
           : slash == path ? 1
                           : (int)(slash - path),
           slash == NULL ? "." : path);
  if (access(folder, W_OK | X_OK) == 0) return LUATTN_OK;
  return luattn_fail(err, LUATTN_IO, "-o: '%s' cannot be created: %s; name a file in a folder that can be written",
                     path, strerror(errno));
}

static luattn_status make_pack(const cli_options *o, luattn_error *err) {
  grid g = {.is_warming = false};
  const double start = now();
  if (o->out != NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "pack: --out is for --list alone; name the file to write with -o, and leave it out");
  if (o->pack == NULL)
    return luattn_fail(err, LUATTN_INVALID, "pack: -o is missing; name the file to write, such as -o model.luapack");
  TRY(check_output(o->pack, err));
  for (int i = 0; i < o->num_specs && o->with_specs; i++) TRY(spec_can_be_reread(o->specs[i], err));
  luattn_status status = grid_open(o, &g, err);
  if (status == LUATTN_OK) status = grid_compile(&g, err);
  if (status == LUATTN_OK) status = write_pack(&g, err);
  if (status == LUATTN_OK) {
    size_t bytes = 0;
    struct stat st;
    for (size_t i = 0; i < 2 * g.num_kernels; i++) {
      size_t size = 0;
      const luattn_image *image = g.kernel[i / 2].image[i % 2];
      if (image != NULL) (void)luattn_image_bytes(image, &size);
      bytes += size;
    }
    printf(
        "%s: %zu kernels of %zu spec%s, %lld bytes (%.2f MB before compression), %zu from the cache, %.1f "
        "s\n",
        o->pack, g.num_images, g.num_specs, g.num_specs == 1 ? "" : "s",
        stat(o->pack, &st) == 0 ? (long long)st.st_size : -1LL, (double)bytes / 1e6, g.from_cache, now() - start);
  }
  grid_close(&g);
  return status;
}

/* ---- listing ---- */

/* A name from an untrusted file, made safe for a line or a path. */
static void clean_name(const char *name, char out[LUATTN_NAME_SIZE]) {
  size_t i = 0;
  for (; name[i] != 0 && i + 1 < LUATTN_NAME_SIZE; i++) {
    const char c = name[i];
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                       c == '-' || (c == '.' && i > 0);
    out[i] = plain ? c : '_';
  }
  out[i] = 0;
}

static void entry_words(const luattn_pack_entry *e, char dims[24], char arch[24]) {
  snprintf(dims, 24, e->head_dim == e->head_dim_v ? "%u" : "%ux%u", (unsigned)e->head_dim, (unsigned)e->head_dim_v);
  snprintf(arch, 24, "%s_%u%.3s", e->is_ptx ? "compute" : "sm", (unsigned)e->arch, e->arch_suffix);
}

static const char *lengths_name(const luattn_pack_entry *e) {
  static const char *const names[] = {"all", "long", "short"};
  return names[e->lengths]; /* checked when the pack was opened */
}

/* What the description of an image adds to its entry: ", packed, pages 8, few queries". */
static void variant_text(const luattn_kernel_description *d, const char *between, char out[64]) {
  char pages[16];
  snprintf(pages, sizeof pages, "%spages%s%d", between, between[0] == '_' ? "" : " ", d->pages);
  snprintf(out, 64, "%s%s%s%s%s%s%s%s%s", d->packed ? between : "", d->packed ? "packed" : "",
           d->pages != 0 ? pages : "", d->decode ? between : "", d->decode ? "decode" : "", d->out_f32 ? between : "",
           d->out_f32 ? "out_f32" : "", d->grad_f32 ? between : "", d->grad_f32 ? "grad_f32" : "");
}

static luattn_status list_image(const luattn_pack *pack, size_t index, luattn_error *err) {
  const luattn_pack_entry *e = luattn_pack_get_entry(pack, index);
  char name[LUATTN_NAME_SIZE], dims[24], arch[24];
  luattn_image *image;
  unsigned registers = 0, shared = 0;
  TRY(luattn_pack_image(pack, index, &image, err));
  luattn_kernel_description d = {.struct_size = sizeof d};
  const luattn_status status = luattn_image_describe(image, &d, err);
  for (size_t i = 0; status == LUATTN_OK && i < d.num_functions; i++) {
    if (d.functions[i].registers > registers) registers = d.functions[i].registers;
    if (d.functions[i].shared_bytes > shared) shared = d.functions[i].shared_bytes;
  }
  char variant[64];
  variant_text(&d, "  ", variant);
  luattn_image_free(image);
  TRY(status);
  clean_name(e->spec_name, name);
  entry_words(e, dims, arch);
  printf("%-24s %-8s %-5s %-8s %-7s %-10s %-6s %9u %8u %9llu %9llu  %016llx%016llx%s%s\n", name,
         kernel_pass_name(e->pass), kernel_dtype_name(e->dtype), dims, lengths_name(e), arch,
         kernel_family_name(e->family), registers, shared, (unsigned long long)e->size,
         (unsigned long long)e->stored_size, (unsigned long long)e->spec_hash[1], (unsigned long long)e->spec_hash[0],
         e->deterministic ? "  deterministic" : "", variant);
  return LUATTN_OK;
}

/* The variant of the image before a source, which it is of. */
static luattn_status source_variant(const luattn_pack *pack, size_t index, char out[64], luattn_error *err) {
  luattn_image *image;
  luattn_kernel_description d = {.struct_size = sizeof d};
  out[0] = 0;
  if (index == 0 || luattn_pack_get_entry(pack, index - 1)->kind != LUATTN_PACK_IMAGE) return LUATTN_OK;
  TRY(luattn_pack_image(pack, index - 1, &image, err));
  const luattn_status status = luattn_image_describe(image, &d, err);
  variant_text(&d, "_", out);
  luattn_image_free(image);
  return status;
}

/* Prints a spec or a source as a line, and with --out writes it to a new file. */
static luattn_status list_text(const luattn_pack *pack, size_t index, const char *folder, luattn_error *err) {
  const luattn_pack_entry *e = luattn_pack_get_entry(pack, index);
  char name[LUATTN_NAME_SIZE], dims[24], arch[24], variant[64], file[256], path[4096];
  void *bytes;
  size_t size;
  TRY(source_variant(pack, index, variant, err));
  clean_name(e->spec_name, name);
  entry_words(e, dims, arch);
  if (e->kind == LUATTN_PACK_SPEC)
    snprintf(file, sizeof file, "%s.lua", name);
  else
    snprintf(file, sizeof file, "%s_%s_%s_%s_%s%s%s.cuh", name, kernel_pass_name(e->pass), kernel_dtype_name(e->dtype),
             dims, arch, e->lengths == 2 ? "_short" : "", variant);
  TRY(luattn_pack_read(pack, index, &bytes, &size, err));
  luattn_status status = LUATTN_OK;
  if (folder != NULL && (size_t)snprintf(path, sizeof path, "%s/%s", folder, file) < sizeof path) {
    FILE *f = fopen(path, "wx"); /* never overwrites */
    const bool ok = f != NULL && fwrite(bytes, 1, size, f) == size;
    if ((f != NULL && fclose(f) != 0) || !ok)
      status =
          luattn_fail(err, LUATTN_IO, "%s: cannot be written: %s; name a new folder with --out", path, strerror(errno));
  }
  if (status == LUATTN_OK) printf("%-24s %s, %zu bytes\n", name, file, size);
  luattn_pack_free(bytes);
  return status;
}

static luattn_status list_entries(const luattn_pack *pack, const cli_options *o, luattn_error *err) {
  luattn_pack_info info;
  size_t images = 0;
  char version[2][LUATTN_NAME_SIZE];
  luattn_pack_get_info(pack, &info);
  clean_name(info.luattn_version, version[0]);
  clean_name(info.nvrtc_version, version[1]);
  for (size_t i = 0; i < info.num_entries; i++) images += luattn_pack_get_entry(pack, i)->kind == LUATTN_PACK_IMAGE;
  printf("%s: %zu kernels, %zu bytes, luattn %s, NVRTC %s\n", o->spec, images, info.bytes,
         version[0][0] != 0 ? version[0] : "unknown", version[1][0] != 0 ? version[1] : "unknown");
  printf("%-24s %-8s %-5s %-8s %-7s %-10s %-6s %9s %8s %9s %9s  %s\n", "spec", "pass", "dtype", "head dim", "lengths",
         "arch", "family", "registers", "shared", "bytes", "stored", "spec hash");
  for (size_t i = 0; i < info.num_entries; i++) {
    const bool is_image = luattn_pack_get_entry(pack, i)->kind == LUATTN_PACK_IMAGE;
    if (is_image)
      TRY(list_image(pack, i, err));
    else
      TRY(list_text(pack, i, o->out, err));
  }
  return LUATTN_OK;
}

/* A list compiles nothing: options that say how would be ignored, so they are refused. */
static luattn_status check_list_options(const cli_options *o, luattn_error *err) {
  const struct {
    const char *name;
    bool is_given;
  } unused[] = {{"--arch", o->arch != NULL},
                {"--dtype", o->dtype != NULL},
                {"--head-dim", o->head_dim != NULL},
                {"--pass", o->pass != NULL},
                {"--device", o->device != NULL},
                {"--family", o->family != NULL},
                {"--jobs", o->jobs != 0},
                {"--with-specs", o->with_specs},
                {"--with-sources", o->with_sources},
                {"--deterministic", o->deterministic},
                {"--decode", o->decode},
                {"--packed", o->packed},
                {"--out-f32", o->out_f32},
                {"--grad-f32", o->grad_f32},
                {"--pages", o->pages != NULL},
                {"--cache-dir", o->cache_dir != NULL}};
  if (o->pack != NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "pack: --list: writes no pack, so that -o '%s' has no use; name a folder for specs and "
                       "sources with --out",
                       o->pack);
  for (size_t i = 0; i < sizeof unused / sizeof *unused; i++)
    if (unused[i].is_given)
      return luattn_fail(err, LUATTN_INVALID, "pack: --list: compiles nothing, so that %s has no use; leave it out",
                         unused[i].name);
  return LUATTN_OK;
}

static luattn_status list_pack(const cli_options *o, luattn_error *err) {
  luattn_pack *pack;
  TRY(check_list_options(o, err));
  if (o->num_specs > 1)
    return luattn_fail(err, LUATTN_INVALID, "pack: --list: '%s' is one file too many; name one pack", o->specs[1]);
  if (o->out != NULL && mkdir(o->out, 0777) != 0 && errno != EEXIST)
    return luattn_fail(err, LUATTN_IO, "--out: '%s' cannot be created: %s; name a folder in one that exists", o->out,
                       strerror(errno));
  TRY(luattn_pack_open(o->spec, &pack, err));
  const luattn_status status = list_entries(pack, o, err);
  luattn_pack_close(pack);
  return status;
}

int cmd_pack(const cli_options *o) {
  luattn_error err;
  return (o->list ? list_pack(o, &err) : make_pack(o, &err)) == LUATTN_OK ? 0 : cli_fail(&err);
}
