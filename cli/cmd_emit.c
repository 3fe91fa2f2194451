/* cmd_emit.c: luattn emit. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* --arch, or --device: the architecture of a local GPU, and the tiles that are remembered for it. */
static luattn_status read_arch(const cli_options *o, luattn_target *t, luattn_device_info *device, luattn_error *err) {
  if (o->arch != NULL && o->device != NULL)
    return luattn_fail(err, LUATTN_INVALID, "--arch: '%s' and --device '%s' both name an architecture; give one",
                       o->arch, o->device);
  if (o->device != NULL) {
    int driver_version;
    TRY(gpu_look(o, device, &driver_version, err));
    t->arch = device->arch;
    t->driver_version = driver_version;
    t->device = o->no_tuned ? NULL : device->name;
  }
  return o->arch != NULL ? arch_option(o->arch, t, err) : LUATTN_OK;
}

/* --wants. */
static luattn_status read_wants(const cli_options *o, luattn_target *t, luattn_error *err) {
  static const char *const names[] = {"dq", "dk", "dv", "inputs", "scalars"}; /* in luattn_wants' order */
  if (o->wants == NULL) return LUATTN_OK;
  if (kernel_pass_wants(t->pass) == 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "--wants: '%s' names gradients, and %s computes none; give --pass backward, too", o->wants,
                       kernel_pass_name(t->pass));
  for (const char *at = o->wants, *end;; at = end + 1) {
    unsigned bit = 0;
    end = at + strcspn(at, ",");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
      if (strlen(names[i]) == (size_t)(end - at) && memcmp(names[i], at, (size_t)(end - at)) == 0) bit = 1u << i;
    if (bit == 0)
      return luattn_fail(err, LUATTN_INVALID,
                         "--wants: '%.*s' is not a kind of gradient; use dq, dk, dv, inputs or scalars",
                         (int)(end - at), at);
    t->wants |= bit;
    if (*end == 0) return LUATTN_OK;
  }
}

/* The bit of a name of --along; 0: there is none of this name. */
static uint64_t tangent_named(const luattn_spec_info *info, const char *name, size_t size) {
  static const char *const tensor[] = {"q", "k", "v"};
  uint64_t bit = 0;
  for (size_t i = 0; i < 3; i++)
    if (strlen(tensor[i]) == size && memcmp(tensor[i], name, size) == 0) bit = LUATTN_TANGENT_Q << i;
  for (size_t i = 0; i < info->num_inputs; i++)
    if (strlen(info->inputs[i].name) == size && memcmp(info->inputs[i].name, name, size) == 0)
      bit = LUATTN_TANGENT_INPUT(i);
  for (size_t i = 0; i < info->num_scalars; i++)
    if (strlen(info->scalar_names[i]) == size && memcmp(info->scalar_names[i], name, size) == 0)
      bit = LUATTN_TANGENT_SCALAR(i);
  return bit;
}

/* --along. */
static luattn_status read_along(const cli_options *o, const luattn_spec *spec, luattn_target *t, luattn_error *err) {
  luattn_spec_info info;
  if (o->along == NULL) return LUATTN_OK;
  luattn_spec_get_info(spec, &info);
  for (const char *at = o->along, *end;; at = end + 1) {
    end = at + strcspn(at, ",");
    const uint64_t bit = tangent_named(&info, at, (size_t)(end - at));
    if (bit == 0)
      return luattn_fail(
          err, LUATTN_INVALID,
          "--along: '%.*s' is none of q, k, v, and the spec's inputs and scalars; name these, with commas",
          (int)(end - at), at);
    t->tangents |= bit;
    if (*end == 0) return LUATTN_OK;
  }
}

static luattn_status read_target(const cli_options *o, luattn_target *t, luattn_device_info *device,
                                 luattn_error *err) {
  cli_problem sizes;
  int tile[2] = {0, 0}, lengths;
  TRY(shape_option(o, &sizes, err));
  *t = (luattn_target){.struct_size = sizeof *t,
                       .dtype = LUATTN_F32,
                       .head_dim = sizes.dim,
                       .head_dim_v = sizes.dim_v,
                       .arch = 80,
                       .cache_dir = o->cache_dir,
                       .deterministic = o->deterministic};
  TRY(dtype_option(o, &t->dtype, err));
  TRY(family_option(o, &t->family, err));
  TRY(read_arch(o, t, device, err));
  if (o->tile != NULL && (parse_sizes(o->tile, 2, tile) != 2 || tile[0] < 1 || tile[1] < 1)) {
    return luattn_fail(err, LUATTN_INVALID, "--tile: '%s' is not M,N; give two positive sizes such as 64,64", o->tile);
  }
  t->tile_m = tile[0], t->tile_n = tile[1];
  TRY(box_options(o, &t->query_tile_size, &t->key_tile_size, err));
  if (o->backward && o->pass != NULL && strcmp(o->pass, "backward") != 0)
    return luattn_fail(err, LUATTN_INVALID, "--pass: '%s' and --backward ask for two passes; give one", o->pass);
  if (o->backward) t->pass = LUATTN_BACKWARD;
  TRY(pass_option(o, &t->pass, err));
  TRY(read_wants(o, t, err));
  if (o->offsets != NULL && strcmp(o->offsets, "numbers") != 0 && strcmp(o->offsets, "arrays") != 0 &&
      strcmp(o->offsets, "chunks") != 0)
    return luattn_fail(err, LUATTN_INVALID, "--offsets: '%s' is not numbers, arrays or chunks", o->offsets);
  if (o->offsets != NULL)
    t->offsets = o->offsets[0] == 'n'   ? LUATTN_OFFSET_NUMBERS
                 : o->offsets[0] == 'a' ? LUATTN_OFFSET_ARRAYS
                                        : LUATTN_OFFSET_CHUNKS;
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks) t->name = o->name;
#include "abi/kernel_facts.def"
  t->decode = o->decode;
  TRY(lengths_option(o, &lengths, err));
  if (lengths != 0)
    t->lengths = (luattn_lengths)(lengths - 1);
  else if (o->shape != NULL) {
    t->many_rows = t->decode != 0 && problem_has_many_rows(&sizes);
    t->lengths = t->decode != 0 ? problem_decode_rows(&sizes) : luattn_lengths_of(t->pass, sizes.q_len, sizes.kv_len);
  }
  return LUATTN_OK;
}

static luattn_status emit_cubin(const luattn_spec *spec, const luattn_target *t, luattn_error *err) {
  luattn_image *image;
  luattn_compile_report report = {0};
  size_t size;
  TRY(luattn_compile(spec, t, &image, &report, err));
  if (report.cache_hit) {
    fprintf(stderr, "from the cache: %.1f ms\n", report.cache_ms);
  } else {
    fprintf(stderr, "compiled: trace %.1f ms, plan and source %.1f ms, NVRTC %.0f ms\n", report.trace_ms,
            report.plan_ms, report.nvrtc_ms);
  }
  fputs(report.plan, stderr); /* the plan after compilation, which --stage plan cannot know */
  const void *cubin = luattn_image_cubin(image, &size);
  const bool ok = fwrite(cubin, 1, size, stdout) == size && fflush(stdout) == 0;
  luattn_image_free(image);
  return ok ? LUATTN_OK : luattn_fail(err, LUATTN_IO, "standard output: cannot be written: %s", strerror(errno));
}

static luattn_status emit(const cli_options *o, const luattn_spec *spec, luattn_error *err) {
  static const char *const stages[] = {"ir",   "grad", "tangent", "merge", "mask",
                                       "plan", "spec", "config",  "ptx",   "cubin"};
  luattn_target target;
  luattn_device_info device;
  char *text;
  bool known = false;
  if (o->stage == NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "--stage: is missing; name ir, grad, tangent, merge, mask, plan, spec, config, ptx or cubin");
  for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) known |= strcmp(o->stage, stages[i]) == 0;
  if (!known) {
    return luattn_fail(
        err, LUATTN_INVALID,
        "--stage: '%s' is not a stage; use ir, grad, tangent, merge, mask, plan, spec, config, ptx or cubin", o->stage);
  }
  TRY(read_target(o, &target, &device, err));
  TRY(read_along(o, spec, &target, err));
  const bool cubin = strcmp(o->stage, "cubin") == 0;
  if (cubin && target.ptx)
    return luattn_fail(err, LUATTN_INVALID, "--arch: '%s' has no cubin; give --stage ptx, or sm_%d", o->arch,
                       target.arch);
  target.one_code = cubin;
  target.input_types = any_types_as(spec, target.dtype); /* emit has no tensors */
  if (cubin) return emit_cubin(spec, &target, err);
  TRY(luattn_emit(spec, &target, o->stage, &text, err));
  const bool ok = fputs(text, stdout) != EOF && fflush(stdout) == 0;
  luattn_text_free(text);
  return ok ? LUATTN_OK : luattn_fail(err, LUATTN_IO, "standard output: cannot be written: %s", strerror(errno));
}

int cmd_emit(const cli_options *o) {
  luattn_error err;
  luattn_spec *spec;
  if (luattn_spec_load(o->spec, NULL, &spec, &err) != LUATTN_OK) return cli_fail(&err);
  const luattn_status status = emit(o, spec, &err);
  luattn_spec_free(spec);
  return status == LUATTN_OK ? 0 : cli_fail(&err);
}
