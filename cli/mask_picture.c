/* mask_picture.c: luattn mask over a grid: which keys a query keeps, and the classes of boxes of keys beside its box. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/extents.h"

enum { MOST_LINES = 64 };

luattn_status picture_write(const char *path, char *drawn, luattn_error *err) {
  FILE *f = fopen(path, "w");
  if (f == NULL) {
    luattn_text_free(drawn);
    return luattn_fail(err, LUATTN_IO, "--svg: '%s' cannot be written: %s; name a file in a folder that exists", path,
                       strerror(errno));
  }
  fputs(drawn, f);
  luattn_text_free(drawn);
  if (fclose(f) == 0) return LUATTN_OK;
  return luattn_fail(err, LUATTN_IO, "--svg: '%s' cannot be written: %s; free some space", path, strerror(errno));
}

static luattn_status query_option(const cli_options *o, const cli_problem *p, int query[LUATTN_MAX_AXES],
                                  luattn_error *err) {
  for (int a = 0; a < p->axes; a++) query[a] = p->extent[0][a] / 2;
  if (o->query == NULL || parse_sizes(o->query, p->axes, query) == p->axes) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "--query: '%s' is not the coordinates of a query; give %d, as %s", o->query,
                     p->axes,
                     p->axes == 2   ? "8,8"
                     : p->axes == 3 ? "2,8,8"
                                    : "1,2,8,8");
}

/* "8x8,8x16" */
static luattn_status boxes_option(const cli_options *o, const cli_problem *p, luattn_mask_places *out,
                                  luattn_error *err) {
  int count[2] = {0};
  if (o->tile == NULL) return LUATTN_OK;
  const char *at = extents_read(o->tile, LUATTN_MAX_AXES, out->q_box, &count[0]);
  if (at != NULL && *at == ',') at = extents_read(at + 1, LUATTN_MAX_AXES, out->kv_box, &count[1]);
  bool is_right = at != NULL && *at == 0 && count[0] == p->axes && count[1] == p->axes;
  for (int a = 0; is_right && a < p->axes; a++) is_right = out->q_box[a] > 0 && out->kv_box[a] > 0;
  if (is_right) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "--tile: '%s' is no pair of boxes with %d axes; give one of queries and one of keys, as %s",
                     o->tile, p->axes,
                     p->axes == 2   ? "8x8,8x16"
                     : p->axes == 3 ? "4x4x8,4x4x8"
                                    : "1x4x4x8,1x4x4x8");
}

/* A row of the two innermost axes in a line: kept keys, and others by the class of their box. */
static void print_rows(const luattn_mask_places *m, const unsigned char *places) {
  static const char *const glyph[] = {
      "\xc2\xb7",     "\xe2\x96\x88", "\xe2\x96\x91",
      "\xe2\x96\x88", "\xe2\x96\x92", "\xe2\x96\x88"}; /* middle dot, light and medium shade, full block */
  const int rows = m->kv_extent[m->axes - 2], columns = m->kv_extent[m->axes - 1];
  const int step_r = (rows + MOST_LINES - 1) / MOST_LINES, step_c = (columns + MOST_LINES - 1) / MOST_LINES;
  for (int r = 0; r < rows; r += step_r) {
    for (int c = 0; c < columns; c += step_c) fputs(glyph[places[r * columns + c]], stdout);
    putchar('\n');
  }
}

static void print_slices(const cli_problem *p, const luattn_mask_places *m) {
  const char *const *names;
  (void)luattn_spec_grid(p->spec, &names);
  const size_t size = (size_t)m->kv_extent[m->axes - 2] * (size_t)m->kv_extent[m->axes - 1];
  int slices = 1;
  for (int a = 0; a < m->axes - 2; a++) slices *= m->kv_extent[a];
  for (int i = 0; i < slices; i++) {
    const unsigned char *places = m->places + (size_t)i * size;
    bool is_empty = slices > 1;
    for (size_t j = 0; j < size && is_empty; j++) is_empty = places[j] == 0;
    if (is_empty) continue;
    int step = slices;
    for (int a = 0; a < m->axes - 2; a++) {
      step /= m->kv_extent[a];
      printf("%s%s = %d%s", a > 0 ? ", " : "", names[a], i / step % m->kv_extent[a], a == m->axes - 3 ? ":\n" : "");
    }
    print_rows(m, places);
  }
}

static void print_box(const int *box, int axes) {
  for (int a = 0; a < axes; a++) printf("%s%d", a > 0 ? "x" : "", box[a]);
}

static size_t kept_keys(const cli_problem *p, const luattn_mask_places *m) {
  size_t kept = 0;
  for (int i = 0; i < p->kv_len; i++) kept += m->places[i] & 1;
  return kept;
}

static void print_counts(const cli_options *o, const cli_problem *p, const luattn_mask_places *m) {
  printf("%s, batch %ld, head %ld, query ", p->info.name, o->batch, o->head);
  for (int a = 0; a < m->axes; a++) printf("%s%d", a > 0 ? "," : "", m->query[a]);
  printf(": %zu of %d keys kept\nboxes of ", kept_keys(p, m), p->kv_len);
  print_box(m->kv_box, m->axes);
  printf(" keys beside its box of ");
  print_box(m->q_box, m->axes);
  printf(" queries: %d full, %d partial, %d empty\n", m->boxes[2], m->boxes[1], m->boxes[0]);
}

static void print_computed(const cli_problem *p, const luattn_mask_counts *c) {
  printf("in %d batch entries and %d heads kernels compute ", p->batch, p->heads);
  if (c->q_box[0] == 0) {
    printf("boxes that were not counted, as the mask is no product of axes");
  } else {
    printf("%.0f of %.0f boxes of ", c->full + c->partial, c->tiles);
    print_box(c->q_box, p->axes);
    printf(" queries by ");
    print_box(c->kv_box, p->axes);
    printf(" keys (%.1f%%), %.0f of them full", c->tiles > 0 ? 100 * (c->full + c->partial) / c->tiles : 0, c->full);
  }
  char text[32];
  printf("; %.2f%% of the scores kept%s\n", c->scores > 0 ? 100 * c->kept / c->scores : 0,
         mask_error_text(c->kept, c->kept_error, text));
}

/* Which pairs of boxes calls of these extents choose from, by what each of them computes. */
static void print_pairs(const cli_problem *p, const luattn_args *args, const luattn_mask_counts *taken,
                        const luattn_target *of) {
  enum { PAIRS = 3 };
  luattn_target target = *of;
  luattn_error err;
  for (target.boxes = 1; target.boxes <= PAIRS; target.boxes++) {
    luattn_mask_counts c = {.struct_size = sizeof c};
    if (luattn_mask_survey(p->spec, &target, args, 0, 0, &c, &err) != LUATTN_OK || c.q_box[0] == 0) return;
    const bool same =
        memcmp(c.q_box, taken->q_box, sizeof c.q_box) == 0 && memcmp(c.kv_box, taken->kv_box, sizeof c.kv_box) == 0;
    if (same) continue;
    printf("by ");
    print_box(c.q_box, p->axes);
    printf(" by ");
    print_box(c.kv_box, p->axes);
    printf(" %.0f boxes would be computed, %.0f of them full\n", c.full + c.partial, c.full);
  }
}

/* What a target's kernels compute of it: in boxes, where axes say their classes. */
static luattn_status count_computed(const cli_options *o, const cli_problem *p, const luattn_args *args,
                                    const luattn_mask_places *m, luattn_error *err) {
  luattn_target target;
  luattn_mask_counts c = {.struct_size = sizeof c};
  TRY(mask_target(o, p, LUATTN_FORWARD, &target, err));
  const luattn_status status = luattn_mask_survey(p->spec, &target, args, 0, 0, &c, err);
  const bool asked = o->dtype != NULL || o->arch != NULL || o->family != NULL || o->pass != NULL;
  if (status != LUATTN_OK && asked) return status;
  if (status != LUATTN_OK)
    printf("no boxes of kernels were counted: %s\n", err->message); /* nobody asked for this one */
  else
    print_computed(p, &c), print_pairs(p, args, &c, &target);
  if (o->json == NULL) return LUATTN_OK;
  return mask_places_write(o->json, p->info.name, status == LUATTN_OK ? &c : NULL, m, kept_keys(p, m), err);
}

static luattn_status save(const cli_options *o, const cli_problem *p, const luattn_mask_places *m, luattn_error *err) {
  const char *const *names;
  char title[256], *drawn;
  if (o->svg == NULL) return LUATTN_OK;
  (void)luattn_spec_grid(p->spec, &names);
  snprintf(title, sizeof title, "%s, batch %ld, head %ld", p->info.name, o->batch, o->head);
  TRY(luattn_mask_places_svg(m, names, title, &drawn, err));
  return picture_write(o->svg, drawn, err);
}

luattn_status places_draw(const cli_options *o, const cli_problem *p, luattn_error *err) {
  luattn_mask_places m = {.struct_size = sizeof m, .batch = (int)o->batch, .head = (int)o->head};
  cli_result r = {0};
  cli_binding bind;
  TRY(query_option(o, p, m.query, err));
  TRY(boxes_option(o, p, &m, err));
  m.places = malloc((size_t)p->kv_len + 1);
  if (m.places == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "mask: no memory for %d places", p->kv_len);
  const luattn_args args = problem_args(p, &r, false, &bind);
  luattn_status status = luattn_mask_places_of(p->spec, &args, &m, err);
  if (status == LUATTN_OK) {
    print_slices(p, &m);
    print_counts(o, p, &m);
    status = count_computed(o, p, &args, &m, err);
  }
  if (status == LUATTN_OK) { status = save(o, p, &m, err); }
  free(m.places);
  return status;
}
