/* row_width.c: chooses the vector width of an input mod that reads other elements of its row. */
#include "gen/lower/lowering.h"

/* Whether every vector of `width` channels reads from a single vector, with the same permutation of elements
 * in each. */
static bool keeps_vectors(const row_tables *t, int width) {
  if (t->dim % width != 0) return false;
  for (int i = 0; i < t->count; i++)
    for (int d = 0; d < t->dim; d++) {
      const uint16_t *channel = t->channel[i];
      const int first = d / width * width, place = d % width;
      if (channel[d] / width != channel[first] / width || channel[d] % width != channel[place] % width) return false;
    }
  return true;
}

void row_width_choose(lowered *f, text *why) {
  static const char *const name[3] = {"query_mod", "key_mod", "value_mod"};
  const int width = f->plan->tangents != 0 ? 1 : tiles_copies(f->plan).mod;
  for (int i = 0; i < 3; i++) {
    const row_tables *t = lowered_traced(f)->rows[i];
    f->row_width[i] = t != NULL && keeps_vectors(t, width) ? width : 1;
    if (t != NULL && width > 1 && f->row_width[i] == 1)
      text_add(why, "%s: one channel at a time, because x[..] takes vectors of %d channels apart\n", name[i], width);
  }
}
