/* mask_svg.c: luattn_mask_svg: a picture of a mask's tiles, the same for the command line and Python. Colours are Okabe
 * and Ito's blue and orange, which colour-blind readers tell apart. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/host.h"
#include "gen/base/arena.h"
#include "gen/base/text.h"
#include "luattn/compiler.h"

enum { SIDE = 480, LEFT = 76, TOP = 62, RIGHT = 24, LINE = 20, BOTTOM = 3 * LINE, TICKS = 4 };
enum { EMPTY, PARTIAL, FULL, CLASSES };
static const char *const colours[CLASSES] = {"#ffffff", "#e69f00", "#0072b2"};

typedef struct sheet {
  const luattn_mask_picture *p;
  int rows, columns;
  double width, height; /* of the drawn scores, in pixels; the longer one is SIDE */
  size_t count[CLASSES];
  text out;
} sheet;

static void add_escaped(text *t, const char *s) {
  for (; *s != 0; s++) {
    if (*s == '&')
      text_add(t, "&amp;");
    else if (*s == '<')
      text_add(t, "&lt;");
    else
      text_bytes(t, s, 1);
  }
}

static void add_label(sheet *s, double x, double y, const char *anchor, const char *label) {
  text_add(&s->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
  add_escaped(&s->out, label);
  text_add(&s->out, "</text>\n");
}

/* A run of tiles of one class in a row is one rectangle. The last tile of an axis ends where the scores do. */
static void add_tiles(sheet *s) {
  const luattn_mask_picture *p = s->p;
  for (int i = 0; i < s->rows; i++) {
    const unsigned char *row = p->classes + (size_t)i * (size_t)s->columns;
    for (int j = 0, end; j < s->columns; j = end) {
      for (end = j + 1; end < s->columns && row[end] == row[j];) end++;
      if (row[j] == EMPTY) continue;
      const double per_q = s->height / p->q_len, per_kv = s->width / p->kv_len;
      const int last_q = i + 1 < s->rows ? (i + 1) * p->tile_m : p->q_len;
      const int last_kv = end < s->columns ? end * p->tile_n : p->kv_len;
      text_add(&s->out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"/>\n",
               LEFT + j * p->tile_n * per_kv, TOP + i * p->tile_m * per_q, (last_kv - j * p->tile_n) * per_kv,
               (last_q - i * p->tile_m) * per_q, colours[row[j]]);
    }
  }
}

/* Positions at round distances: a power of two, so that ticks fall on tiles. */
static int tick_distance(int length) {
  int distance = 1;
  while (distance < length && (length + distance - 1) / distance > TICKS) distance *= 2;
  return distance;
}

static void add_axes(sheet *s) {
  const luattn_mask_picture *p = s->p;
  char number[16];
  for (int x = 0; x <= p->kv_len; x += tick_distance(p->kv_len)) {
    const double at = LEFT + s->width * x / p->kv_len;
    snprintf(number, sizeof number, "%d", x);
    text_add(&s->out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#222222\"/>\n", at, at, TOP - 4, TOP);
    add_label(s, at, TOP - 8, "middle", number);
  }
  for (int y = 0; y <= p->q_len; y += tick_distance(p->q_len)) {
    const double at = TOP + s->height * y / p->q_len;
    snprintf(number, sizeof number, "%d", y);
    text_add(&s->out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#222222\"/>\n", LEFT - 4, LEFT, at,
             at);
    add_label(s, LEFT - 7, at + 4, "end", number);
  }
  add_label(s, LEFT + s->width / 2, TOP - 24, "middle", "kv_idx");
  text_add(&s->out, "<text transform=\"translate(14 %.1f) rotate(-90)\" text-anchor=\"middle\">q_idx</text>\n",
           TOP + s->height / 2);
  text_add(&s->out, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"#222222\"/>\n", LEFT,
           TOP, s->width, s->height);
}

static void add_legend(sheet *s) {
  static const char *const names[CLASSES] = {"empty", "partial", "full"};
  const double total = (double)s->rows * s->columns;
  const double y = TOP + s->height + LINE;
  for (int i = 0; i < CLASSES; i++) {
    const double x = LEFT + i * (s->width > 360 ? s->width : 360) / CLASSES;
    char label[64];
    snprintf(label, sizeof label, "%zu %s", s->count[i], names[i]);
    text_add(&s->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"11\" height=\"11\" fill=\"%s\" stroke=\"#222222\"/>\n", x,
             y - 10, colours[i]);
    add_label(s, x + 17, y, "start", label);
  }
  char share[96];
  snprintf(share, sizeof share, "tiles of %d x %d: %.1f %% are computed", s->p->tile_m, s->p->tile_n,
           total > 0 ? 100 * (double)(s->count[PARTIAL] + s->count[FULL]) / total : 0);
  add_label(s, LEFT, y + LINE, "start", share);
}

static void draw(sheet *s) {
  const luattn_mask_picture *p = s->p;
  const double longest = p->q_len > p->kv_len ? p->q_len : p->kv_len;
  s->width = SIDE * (p->kv_len / longest), s->height = SIDE * (p->q_len / longest);
  const double across = LEFT + (s->width > 360 ? s->width : 360) + RIGHT, down = TOP + s->height + BOTTOM;
  text_add(&s->out,
           "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.1f %.1f\" width=\"%.1f\" height=\"%.1f\" "
           "role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<title>",
           across, down, across, down);
  add_escaped(&s->out, p->title);
  text_add(&s->out,
           "</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n<g shape-rendering=\"crispEdges\">\n");
  add_tiles(s);
  text_add(&s->out, "</g>\n<g fill=\"#222222\">\n<g font-weight=\"600\">\n");
  add_label(s, LEFT, 20, "start", p->title);
  text_add(&s->out, "</g>\n");
  add_axes(s);
  add_legend(s);
  text_add(&s->out, "</g>\n</svg>\n");
}

typedef struct svg_call {
  const luattn_mask_picture *p;
  char **out;
} svg_call;

static luattn_status run(void *arguments, luattn_error *err) {
  const svg_call *call = arguments;
  const luattn_mask_picture *p = call->p;
  sheet s = {.p = p,
             .rows = p->q_len / p->tile_m + (p->q_len % p->tile_m != 0),
             .columns = p->kv_len / p->tile_n + (p->kv_len % p->tile_n != 0)};
  for (size_t i = 0; i < (size_t)s.rows * (size_t)s.columns; i++) {
    if (p->classes[i] >= CLASSES)
      return luattn_fail(err, LUATTN_INVALID, "mask: classes: tile %zu has %d, expected 0 empty, 1 partial or 2 full",
                         i, p->classes[i]);
    s.count[p->classes[i]]++;
  }
  arena *a = arena_open(NULL);
  if (a != NULL) {
    text_init(&s.out, a);
    draw(&s);
    *call->out = text_failed(&s.out) ? NULL : strdup(text_get(&s.out));
    arena_close(a);
  }
  if (*call->out != NULL) return LUATTN_OK;
  return luattn_fail(err, LUATTN_NO_MEMORY, "mask: no memory for its picture; draw larger tiles");
}

luattn_status luattn_mask_svg(const luattn_mask_picture *picture, char **out, luattn_error *err) {
  fail_clear(err);
  NEED(picture);
  NEED(out);
  *out = NULL;
  if (picture->title == NULL || picture->classes == NULL)
    return luattn_fail(err, LUATTN_INVALID, "luattn_mask_svg: %s: is NULL",
                       picture->title == NULL ? "title" : "classes");
  if (picture->q_len < 1 || picture->kv_len < 1 || picture->tile_m < 1 || picture->tile_n < 1)
    return luattn_fail(err, LUATTN_INVALID, "mask: %d x %d scores in tiles of %d x %d: expected at least 1 of each",
                       picture->q_len, picture->kv_len, picture->tile_m, picture->tile_n);
  return host_run(run, &(svg_call){.p = picture, .out = out}, err);
}
