/* spec_rows.c: prints struct QueryRow and the like: which channels of its row an input mod reads besides its own. */
#include <stdlib.h>

#include "gen/emit/sections.h"

/* Prints statements that return `of` plus its offset in `added`, for numbers below n. */
static void add_runs(writer *w, const char *of, const int *added, int n) {
  for (int first = 0, next; first < n; first = next) {
    for (next = first + 1; next < n && added[next] == added[first];) next++;
    if (next < n) text_add(&w->out, "if (%s < %d) ", of, next);
    if (added[first] == 0)
      text_add(&w->out, "return %s;\n", of);
    else
      text_add(&w->out, "return %s %c %d;\n", of, added[first] < 0 ? '-' : '+', abs(added[first]));
  }
}

/* Prints, for each table, the function from a vector to the vector that it reads, or from an element of the
 * vector to the element that it reads. */
static void add_map(writer *w, const char *name, const char *of, const row_tables *t, int width, bool of_vectors) {
  int *added = arena_array(w->f->a, (size_t)t->dim, sizeof *added);
  if (added == NULL) {
    w->failed = true;
    return;
  }
  open_function(w, writer_format(w, "int %s(int table, int %s)", name, of));
  for (int i = 0; i < t->count; i++) {
    const int n = of_vectors ? t->dim / width : width;
    for (int at = 0; at < n; at++)
      added[at] = (of_vectors ? t->channel[i][at * width] / width : t->channel[i][at] % width) - at;
    const bool last = i == t->count - 1;
    if (!last) text_add(&w->out, "if (table == %d) {\n", i);
    if (!last) w->out.indent++;
    add_runs(w, of, added, n);
    if (!last) w->out.indent--;
    if (!last) text_add(&w->out, "}\n");
  }
  close_function(w);
}

/* Whether each vector of one half of the row reads its counterpart in the other half, and no other. */
static bool swaps_halves(const row_tables *t, int width) {
  const int n = t->dim / width;
  bool swaps = t->count == 1 && n % 2 == 0;
  for (int v = 0; swaps && v < n; v++) swaps = t->channel[0][v * width] / width == (v + n / 2) % n;
  return swaps;
}

void emit_row_map(writer *w, const char *type, const row_tables *t, int width) {
  text_add(&w->out, "struct %s {  // x[..]: what each vector of channels reads besides itself\n", type);
  w->out.indent++;
  text_add(&w->out, "static constexpr int count = %d, width = %d;\n", t->count, width);
  text_add(&w->out, "static constexpr bool swaps_halves = %s;\n", swaps_halves(t, width) ? "true" : "false");
  add_map(w, "vector", "v", t, width, true);
  add_map(w, "lane", "j", t, width, false);
  w->out.indent--;
  text_add(&w->out, "};\n");
}
