/* mask_counts.c: prints the tiles that kernels compute of a mask, and by what means they find them. */
#include <errno.h>
#include <string.h>

#include "abi/kernel_facts.h"
#include "cli/cli.h"

uint64_t any_types_as(const luattn_spec *spec, luattn_dtype dtype) {
  luattn_spec_info info;
  uint64_t types = 0;
  luattn_spec_get_info(spec, &info);
  for (size_t i = 0; i < info.num_inputs; i++)
    if (info.inputs[i].dtype == LUATTN_INPUT_ANY) types |= (1 + (uint64_t)kernel_dtype(dtype)->input) << 4 * i;
  return types;
}

luattn_status mask_target(const cli_options *o, const cli_problem *p, luattn_pass pass, luattn_target *out,
                          luattn_error *err) {
  *out = (luattn_target){.struct_size = sizeof *out,
                         .pass = pass,
                         .dtype = LUATTN_BF16,
                         .head_dim = p->dim,
                         .head_dim_v = p->dim_v,
                         .arch = 90,
                         .cache_dir = o->cache_dir,
                         .deterministic = o->deterministic};
  TRY(pass_option(o, &out->pass, err));
  TRY(dtype_option(o, &out->dtype, err));
  TRY(family_option(o, &out->family, err));
  if (o->arch != NULL) TRY(arch_option(o->arch, out, err));
  out->lengths = luattn_lengths_of(out->pass, p->q_len, p->kv_len);
  out->input_types = any_types_as(p->spec, out->dtype);
  return LUATTN_OK;
}

const char *mask_error_text(double number, double error, char text[32]) {
  text[0] = 0;
  if (error > 0) snprintf(text, 32, " +- %.2g%% (a sample)", 100 * error / (number > error ? number : error));
  return text;
}

const char *mask_means_text(const luattn_mask_counts *c) {
  static const char *const texts[] = {
      [LUATTN_MASK_NONE] = "nothing: there is no mask",
      [LUATTN_MASK_RANGES] = "ranges of positions",
      [LUATTN_MASK_MINIMA] = "ranges of positions, and minima and maxima of numbers in blocks",
      [LUATTN_MASK_CELLS] = "cells of 64x64 scores, for which the device evaluates the mask",
  };
  static const char *const not_evaluated[] = {
      [LUATTN_MASK_RANGES] = "ranges of positions alone: evaluating the mask does not pay here (--skip always)",
      [LUATTN_MASK_MINIMA] =
          "ranges of positions, and minima and maxima of numbers in blocks: evaluating the mask does not pay "
          "here (--skip always)",
  };
  const bool skipped = c->may_evaluate && (c->means == LUATTN_MASK_RANGES || c->means == LUATTN_MASK_MINIMA);
  return skipped ? not_evaluated[c->means] : texts[c->means];
}

void mask_counts_print(const luattn_mask_counts *c) {
  const double computed = c->full + c->partial;
  char text[32];
  printf("%.0f of %.0f tiles of %dx%d (%.1f%%)%s", computed, c->tiles, c->tile_m, c->tile_n,
         c->tiles > 0 ? 100 * computed / c->tiles : 0, mask_error_text(computed, c->computed_error, text));
  printf(", of which %.0f are needed%s", c->needed, mask_error_text(c->needed, c->needed_error, text));
}

static const char *const short_means[] = {[LUATTN_MASK_NONE] = "none",
                                          [LUATTN_MASK_RANGES] = "ranges",
                                          [LUATTN_MASK_MINIMA] = "minima",
                                          [LUATTN_MASK_CELLS] = "cells"};

static void write_text(FILE *f, const char *name, const char *text) {
  fprintf(f, "  \"%s\": \"", name);
  for (; *text != 0; text++) {
    if (*text == '"' || *text == '\\')
      fprintf(f, "\\%c", *text);
    else if ((unsigned char)*text < 0x20)
      fprintf(f, "\\u%04x", (unsigned)*text);
    else
      fputc(*text, f);
  }
  fprintf(f, "\",\n");
}

static luattn_status json_open(const char *path, const char *name, FILE **out, luattn_error *err) {
  *out = fopen(path, "w");
  if (*out == NULL)
    return luattn_fail(err, LUATTN_IO, "--json: '%s' cannot be written: %s; name a file in a folder that exists", path,
                       strerror(errno));
  fprintf(*out, "{\n");
  write_text(*out, "spec", name);
  return LUATTN_OK;
}

static luattn_status json_close(const char *path, FILE *f, luattn_error *err) {
  return fclose(f) == 0 ? LUATTN_OK
                        : luattn_fail(err, LUATTN_IO, "--json: '%s' cannot be written: %s; free some space", path,
                                      strerror(errno));
}

static void write_counts(FILE *f, const luattn_mask_counts *c) {
  fprintf(f,
          "  \"scores\": %.0f,\n  \"kept\": %.0f,\n  \"kept_error\": %.0f,\n"
          "  \"tiles\": %.0f,\n  \"full\": %.0f,\n  \"partial\": %.0f,\n  \"computed_error\": %.0f,\n"
          "  \"needed\": %.0f,\n  \"needed_error\": %.0f,\n",
          c->scores, c->kept, c->kept_error, c->tiles, c->full, c->partial, c->computed_error, c->needed,
          c->needed_error);
}

static void write_numbers(FILE *f, const char *name, const int *numbers, int count) {
  fprintf(f, "\"%s\": [", name);
  for (int i = 0; i < count; i++) fprintf(f, "%s%d", i > 0 ? ", " : "", numbers[i]);
  fprintf(f, "]");
}

luattn_status mask_places_write(const char *path, const char *name, const luattn_mask_counts *c,
                                const luattn_mask_places *m, size_t kept, luattn_error *err) {
  FILE *f;
  TRY(json_open(path, name, &f, err));
  if (c != NULL && c->q_box[0] != 0) {
    fprintf(f, "  "), write_numbers(f, "q_box", c->q_box, m->axes);
    fprintf(f, ", "), write_numbers(f, "kv_box", c->kv_box, m->axes);
    fprintf(f, ",\n");
    write_counts(f, c);
  } else if (c != NULL) {
    fprintf(f, "  \"scores\": %.0f,\n  \"kept\": %.0f,\n  \"kept_error\": %.0f,\n", c->scores, c->kept, c->kept_error);
  }
  fprintf(f, "  \"picture\": {\"batch\": %d, \"head\": %d, ", m->batch, m->head);
  write_numbers(f, "query", m->query, m->axes);
  fprintf(f, ", \"kept\": %zu, ", kept);
  write_numbers(f, "q_box", m->q_box, m->axes);
  fprintf(f, ", "), write_numbers(f, "kv_box", m->kv_box, m->axes);
  fprintf(f, ", \"full\": %d, \"partial\": %d, \"empty\": %d}\n}\n", m->boxes[2], m->boxes[1], m->boxes[0]);
  return json_close(path, f, err);
}

luattn_status mask_counts_write(const char *path, const cli_options *o, const char *name, const luattn_mask_counts *c,
                                const size_t picture[3], luattn_error *err) {
  FILE *f;
  TRY(json_open(path, name, &f, err));
  write_text(f, "means", short_means[c->means]);
  fprintf(f, "  \"may_evaluate\": %s,\n  \"tile\": [%d, %d],\n", c->may_evaluate ? "true" : "false", c->tile_m,
          c->tile_n);
  write_counts(f, c);
  fprintf(f, "  \"picture\": {\"batch\": %ld, \"head\": %ld, \"full\": %zu, \"partial\": %zu, \"empty\": %zu}\n}\n",
          o->batch, o->head, picture[2], picture[1], picture[0]);
  return json_close(path, f, err);
}
