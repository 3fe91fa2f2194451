/* cmd_mask.c: luattn mask: draws the tiles of a mask as kernels class them. */
#include <stdlib.h>

#include "cli/cli.h"

typedef struct picture {
  int rows, columns, tile_m, tile_n;
  unsigned char *tile; /* 0 empty, 1 partial, 2 full */
} picture;

static void print_text(const picture *m) {
  static const char *const glyph[] = {"\xc2\xb7", "\xe2\x96\x92",
                                      "\xe2\x96\x88"}; /* middle dot, medium shade, full block */
  const int most = 64, step_r = (m->rows + most - 1) / most, step_c = (m->columns + most - 1) / most;
  for (int r = 0; r < m->rows; r += step_r) {
    for (int c = 0; c < m->columns; c += step_c) {
      int low = 2, high = 0; /* a cell of several tiles is full or empty only if all of them are */
      for (int i = r; i < r + step_r && i < m->rows; i++) {
        for (int j = c; j < c + step_c && j < m->columns; j++) {
          const int t = m->tile[(size_t)i * (size_t)m->columns + (size_t)j];
          low = t < low ? t : low;
          high = t > high ? t : high;
        }
      }
      fputs(glyph[low == high ? low : 1], stdout);
    }
    putchar('\n');
  }
}

static luattn_status query_needs_grid(const cli_options *o, luattn_error *err) {
  return luattn_fail(err, LUATTN_INVALID, "--query: '%s': is for specs over a grid; leave it out", o->query);
}

static luattn_status write_svg(const cli_options *o, const cli_problem *p, const picture *m, luattn_error *err) {
  char title[256], *drawn;
  snprintf(title, sizeof title, "%s, batch %ld, head %ld", p->info.name, o->batch, o->head);
  TRY(luattn_mask_svg(&(luattn_mask_picture){.title = title,
                                             .classes = m->tile,
                                             .q_len = p->q_len,
                                             .kv_len = p->kv_len,
                                             .tile_m = m->tile_m,
                                             .tile_n = m->tile_n},
                      &drawn, err));
  return picture_write(o->svg, drawn, err);
}

static luattn_status in_range(const char *option, long given, int count, const char *axis, luattn_error *err) {
  if (given >= 0 && given < count) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "%s: is %ld, expected at least 0 and less than %d, the %s of --shape", option,
                     given, count, axis);
}

static void print_counts(const cli_options *o, const cli_problem *p, const picture *m, const size_t count[3]) {
  const size_t tiles = (size_t)m->rows * (size_t)m->columns;
  const double total = tiles > 0 ? (double)tiles : 1;
  printf(
      "%s, batch %ld, head %ld: %dx%d tiles of %dx%d: %zu full (%.1f%%), %zu partial (%.1f%%), %zu empty "
      "(%.1f%%)\n",
      p->info.name, o->batch, o->head, m->rows, m->columns, m->tile_m, m->tile_n, count[2],
      100 * (double)count[2] / total, count[1], 100 * (double)count[1] / total, count[0],
      100 * (double)count[0] / total);
}

/* Kernels without a target's plan evaluate masks from data; --skip auto asks the plan whether they do. */
static luattn_status count(const cli_options *o, const cli_problem *p, const picture *m, luattn_args *args,
                           luattn_mask_counts *out, luattn_error *err) {
  luattn_target target;
  *out = (luattn_mask_counts){.struct_size = sizeof *out};
  TRY(mask_target(o, p, LUATTN_FORWARD, &target, err));
  TRY(luattn_mask_survey(p->spec, &target, args, m->tile_m, m->tile_n, out, err));
  args->skip = out->means == LUATTN_MASK_CELLS ? LUATTN_SKIP_ALWAYS : LUATTN_SKIP_NEVER;
  return LUATTN_OK;
}

static void print_means(const cli_problem *p, const luattn_mask_counts *c) {
  printf("by %s\nin %d batch entries and %d heads: ", mask_means_text(c), p->batch, p->heads);
  mask_counts_print(c);
  char text[32];
  printf("; %.2f%% of the scores kept%s\n", c->scores > 0 ? 100 * c->kept / c->scores : 0,
         mask_error_text(c->kept, c->kept_error, text));
}

static luattn_status show(const cli_options *o, const cli_problem *p, const picture *m, const luattn_mask_counts *c,
                          luattn_error *err) {
  size_t classes[3] = {0};
  for (size_t i = 0; i < (size_t)m->rows * (size_t)m->columns; i++) classes[m->tile[i]]++;
  print_text(m);
  print_means(p, c);
  print_counts(o, p, m, classes);
  if (o->svg != NULL) TRY(write_svg(o, p, m, err));
  return o->json != NULL ? mask_counts_write(o->json, o, p->info.name, c, classes, err) : LUATTN_OK;
}

static luattn_status draw(const cli_options *o, const cli_problem *p, luattn_error *err) {
  picture m;
  int size[2] = {64, 64};
  luattn_mask_counts counts;
  cli_result r = {0};
  cli_binding bind;
  if (o->tile != NULL && (parse_sizes(o->tile, 2, size) != 2 || size[0] < 1 || size[1] < 1)) {
    return luattn_fail(err, LUATTN_INVALID, "--tile: '%s' is not M,N; give two positive sizes such as 64,64", o->tile);
  }
  TRY(in_range("--batch", o->batch, p->batch, "B", err));
  TRY(in_range("--head", o->head, p->heads, "H", err));
  m.tile_m = size[0], m.tile_n = size[1];
  m.rows = p->q_len / m.tile_m + (p->q_len % m.tile_m != 0),
  m.columns = p->kv_len / m.tile_n + (p->kv_len % m.tile_n != 0);
  const size_t tiles = (size_t)m.rows * (size_t)m.columns;
  m.tile = malloc(tiles + 1);
  if (m.tile == NULL) {
    return luattn_fail(err, LUATTN_NO_MEMORY, "--tile: no memory for %dx%d tiles; choose larger ones", m.rows,
                       m.columns);
  }
  luattn_args args = problem_args(p, &r, false, &bind);
  luattn_status status = count(o, p, &m, &args, &counts, err);
  if (status == LUATTN_OK)
    status = luattn_mask_tiles(p->spec, &args, (int)o->batch, (int)o->head, m.tile_m, m.tile_n, m.tile, err);
  if (status == LUATTN_OK) status = show(o, p, &m, &counts, err);
  free(m.tile);
  return status;
}

int cmd_mask(const cli_options *given) {
  cli_options o = *given;
  luattn_error err;
  luattn_spec *spec;
  cli_problem p;
  o.mask_only = true;
  if (luattn_spec_load(o.spec, NULL, &spec, &err) != LUATTN_OK) return cli_fail(&err);
  luattn_status status = problem_read(spec, &o, false, &p, &err);
  if (status == LUATTN_OK) {
    status = p.axes > 1 ? places_draw(&o, &p, &err) : o.query != NULL ? query_needs_grid(&o, &err) : draw(&o, &p, &err);
    problem_free(&p);
  }
  luattn_spec_free(spec);
  return status == LUATTN_OK ? 0 : cli_fail(&err);
}
