/* mask_places_svg.c: luattn_mask_places_svg: a picture of what a query keeps of a grid, the same for the command line and
 * Python. Colours are those of mask_svg.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/host.h"
#include "gen/base/arena.h"
#include "gen/base/text.h"
#include "luattn/compiler.h"

enum { SIDE = 440, SLICE = 170, LEFT = 40, TOP = 52, GAP = 26, LINE = 20, BOTTOM = 70, IN_A_ROW = 4, MOST_SLICES = 24 };
enum { EMPTY, PARTIAL, FULL, CLASSES };
static const char *const kept_colour = "#0072b2", *const query_colour = "#d55e00";
static const char *const class_colour[CLASSES] = {"#ffffff", "#f7dca6", "#c9dff0"};

typedef struct sheet {
  const luattn_mask_places *p;
  const char *const *names;
  int rows, columns;         /* of a slice: the extents of the two innermost axes */
  int slices, drawn;         /* places of the outer axes, and how many of these have boxes that are not empty */
  double cell, across, down; /* of a place and of a picture, in pixels */
  text out;
} sheet;

static const unsigned char *slice_at(const sheet *s, int slice) {
  return s->p->places + (size_t)slice * (size_t)s->rows * (size_t)s->columns;
}

static bool is_shown(const sheet *s, int slice) {
  const unsigned char *places = slice_at(s, slice);
  for (size_t i = 0; i < (size_t)s->rows * (size_t)s->columns; i++)
    if (places[i] != 0) return true;
  return s->slices == 1;
}

static void add_rect(sheet *s, double x, double y, double width, double height, const char *fill, const char *stroke) {
  text_add(&s->out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"", x, y, width, height,
           fill);
  if (stroke != NULL) text_add(&s->out, " stroke=\"%s\"", stroke);
  text_add(&s->out, "/>\n");
}

static void add_text(sheet *s, double x, double y, const char *anchor, const char *label) {
  text_add(&s->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
  for (; *label != 0; label++) {
    if (*label == '&')
      text_add(&s->out, "&amp;");
    else if (*label == '<')
      text_add(&s->out, "&lt;");
    else
      text_bytes(&s->out, label, 1);
  }
  text_add(&s->out, "</text>\n");
}

static const char *colour_of(unsigned char place) { return place & 1 ? kept_colour : class_colour[place >> 1]; }

/* A run of places of one colour in a row is one rectangle. */
static void add_places(sheet *s, const unsigned char *places, double x, double y) {
  for (int i = 0; i < s->rows; i++, places += s->columns)
    for (int j = 0, end; j < s->columns; j = end) {
      for (end = j + 1; end < s->columns && colour_of(places[end]) == colour_of(places[j]);) end++;
      if (places[j] != 0)
        add_rect(s, x + j * s->cell, y + i * s->cell, (end - j) * s->cell, s->cell, colour_of(places[j]), NULL);
    }
}

/* The edges of boxes of keys. */
static void add_lattice(sheet *s, double x, double y) {
  const int *box = s->p->kv_box + s->p->axes - 2;
  const double width = s->columns * s->cell, height = s->rows * s->cell;
  for (int i = box[0]; i < s->rows; i += box[0])
    text_add(&s->out, "<path d=\"M%.2f %.2fh%.2f\" stroke=\"#bbbbbb\"/>\n", x, y + i * s->cell, width);
  for (int j = box[1]; j < s->columns; j += box[1])
    text_add(&s->out, "<path d=\"M%.2f %.2fv%.2f\" stroke=\"#bbbbbb\"/>\n", x + j * s->cell, y, height);
  add_rect(s, x, y, width, height, "none", "#222222");
}

/* Whether the query, or with `box` its box, is in this slice. */
static bool has_query(const sheet *s, int slice, bool box) {
  const luattn_mask_places *p = s->p;
  for (int a = p->axes - 3; a >= 0; slice /= p->kv_extent[a--]) {
    const int at = slice % p->kv_extent[a], size = box ? p->q_box[a] : 1;
    if (at / size != p->query[a] / size) return false;
  }
  return true;
}

static void add_query(sheet *s, int slice, double x, double y) {
  const luattn_mask_places *p = s->p;
  const int *query = p->query + p->axes - 2, *box = p->q_box + p->axes - 2;
  int first[2], size[2];
  const int extent[2] = {s->rows, s->columns};
  for (int i = 0; i < 2; i++) {
    first[i] = query[i] / box[i] * box[i];
    size[i] = first[i] + box[i] < extent[i] ? box[i] : extent[i] - first[i];
  }
  if (has_query(s, slice, true) && size[0] > 0 && size[1] > 0)
    text_add(&s->out,
             "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"none\" stroke=\"%s\" "
             "stroke-width=\"2\"/>\n",
             x + first[1] * s->cell, y + first[0] * s->cell, size[1] * s->cell, size[0] * s->cell, query_colour);
  if (has_query(s, slice, false) && query[0] < s->rows && query[1] < s->columns)
    add_rect(s, x + query[1] * s->cell, y + query[0] * s->cell, s->cell, s->cell, query_colour, NULL);
}

/* "t = 3" */
static void slice_text(const sheet *s, int slice, char label[96]) {
  const luattn_mask_places *p = s->p;
  size_t used = 0;
  int step = s->slices;
  label[0] = 0;
  for (int a = 0; a < p->axes - 2 && used < 96; a++) {
    step /= p->kv_extent[a];
    used += (size_t)snprintf(label + used, 96 - used, "%s%s = %d", a > 0 ? ", " : "", s->names[a],
                             slice / step % p->kv_extent[a]);
  }
}

static void add_slices(sheet *s) {
  const double width = s->columns * s->cell, height = s->rows * s->cell;
  for (int slice = 0, n = 0; slice < s->slices && n < s->drawn; slice++) {
    if (!is_shown(s, slice)) continue;
    const double x = LEFT + n % IN_A_ROW * (width + GAP), y = TOP + n / IN_A_ROW * (height + GAP + LINE);
    char label[96];
    slice_text(s, slice, label);
    add_places(s, slice_at(s, slice), x, y);
    add_lattice(s, x, y);
    add_query(s, slice, x, y);
    add_text(s, x, y - 6, "start", label);
    if (n == 0) {
      add_text(s, x + width, y - 6, "end", s->names[s->p->axes - 1]);
      add_text(s, x - 8, y + 12, "end", s->names[s->p->axes - 2]);
    }
    n++;
  }
}

/* "8x8" */
static void box_text(const int *box, int axes, char label[64]) {
  size_t used = 0;
  for (int a = 0; a < axes && used < 64; a++)
    used += (size_t)snprintf(label + used, 64 - used, "%s%d", a > 0 ? "x" : "", box[a]);
}

static void add_legend(sheet *s) {
  static const char *const names[CLASSES] = {"empty", "partial", "full"};
  const luattn_mask_places *p = s->p;
  char label[256], q_box[64], kv_box[64];
  size_t kept = 0;
  const double y = s->down - BOTTOM + LINE;
  for (size_t i = 0; i < (size_t)s->slices * (size_t)s->rows * (size_t)s->columns; i++) kept += p->places[i] & 1;
  box_text(p->q_box, p->axes, q_box), box_text(p->kv_box, p->axes, kv_box);
  add_rect(s, LEFT, y - 10, 11, 11, query_colour, "#222222");
  add_text(s, LEFT + 17, y, "start", "query, its box");
  add_rect(s, LEFT + 120, y - 10, 11, 11, kept_colour, "#222222");
  snprintf(label, sizeof label, "%zu keys kept", kept);
  add_text(s, LEFT + 137, y, "start", label);
  for (int i = 0; i < CLASSES; i++) {
    const double x = LEFT + i * 120;
    snprintf(label, sizeof label, "%d %s", p->boxes[i], names[i]);
    add_rect(s, x, y + LINE - 10, 11, 11, class_colour[i], "#222222");
    add_text(s, x + 17, y + LINE, "start", label);
  }
  const int shown = s->drawn < MOST_SLICES ? 0 : MOST_SLICES;
  snprintf(label, sizeof label, "boxes of %s keys beside one of %s queries%s", kv_box, q_box,
           shown > 0 ? "; the first slices" : "");
  add_text(s, LEFT, y + 2 * LINE, "start", label);
}

static void draw(sheet *s, const char *title) {
  const int across = s->drawn < IN_A_ROW ? s->drawn : IN_A_ROW, down = (s->drawn + IN_A_ROW - 1) / IN_A_ROW;
  const int longest = s->rows > s->columns ? s->rows : s->columns;
  s->cell = (double)(s->slices == 1 ? SIDE : SLICE) / longest;
  s->across = LEFT + across * (s->columns * s->cell + GAP);
  if (s->across < LEFT + 380) s->across = LEFT + 380;
  s->down = TOP + down * (s->rows * s->cell + GAP + LINE) + BOTTOM - GAP;
  text_add(&s->out,
           "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.1f %.1f\" width=\"%.1f\" height=\"%.1f\" "
           "role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<title>",
           s->across, s->down, s->across, s->down);
  for (const char *c = title; *c != 0; c++) {
    if (*c == '&' || *c == '<')
      text_add(&s->out, *c == '&' ? "&amp;" : "&lt;");
    else
      text_bytes(&s->out, c, 1);
  }
  text_add(&s->out,
           "</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n<g fill=\"#222222\">\n<g "
           "font-weight=\"600\">\n");
  add_text(s, LEFT, 20, "start", title);
  text_add(&s->out, "</g>\n<g shape-rendering=\"crispEdges\">\n");
  add_slices(s);
  text_add(&s->out, "</g>\n");
  add_legend(s);
  text_add(&s->out, "</g>\n</svg>\n");
}

typedef struct svg_call {
  const luattn_mask_places *p;
  const char *const *names;
  const char *title;
  char **out;
} svg_call;

static luattn_status run(void *arguments, luattn_error *err) {
  const svg_call *call = arguments;
  const luattn_mask_places *p = call->p;
  sheet s = {.p = p, .names = call->names, .slices = 1};
  s.rows = p->kv_extent[p->axes - 2], s.columns = p->kv_extent[p->axes - 1];
  for (int a = 0; a < p->axes - 2; a++) s.slices *= p->kv_extent[a];
  for (int i = 0; i < s.slices && s.drawn < MOST_SLICES; i++) s.drawn += is_shown(&s, i);
  arena *a = arena_open(NULL);
  if (a != NULL) {
    text_init(&s.out, a);
    draw(&s, call->title);
    *call->out = text_failed(&s.out) ? NULL : strdup(text_get(&s.out));
    arena_close(a);
  }
  return *call->out != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "mask: no memory for its picture");
}

luattn_status luattn_mask_places_svg(const luattn_mask_places *places, const char *const *names, const char *title,
                                     char **out, luattn_error *err) {
  fail_clear(err);
  NEED(places);
  NEED(names);
  NEED(title);
  NEED(out);
  *out = NULL;
  if (places->places == NULL || places->axes < 2 || places->axes > LUATTN_MAX_AXES)
    return luattn_fail(err, LUATTN_INVALID,
                       "mask: places: are not those that luattn_mask_places_of filled: there are %d axes, and %s",
                       places->axes, places->places == NULL ? "no places" : "places");
  for (int a = 0; a < places->axes; a++)
    if (places->kv_extent[a] < 1 || places->q_box[a] < 1 || places->kv_box[a] < 1)
      return luattn_fail(err, LUATTN_INVALID, "mask: axis %d has %d places in boxes of %d: expected at least 1 of each",
                         a, places->kv_extent[a], places->kv_box[a]);
  return host_run(run, &(svg_call){places, names, title, out}, err);
}
