/* suggest.c: finds "did you mean" for misspelt names. */
#include <ctype.h>
#include <string.h>

#include "gen/lua/state.h"

enum { WORD_MAX = 63 };

static int lower(char c) { return tolower((unsigned char)c); }

/* Optimal string alignment distance: insert, delete, replace, or swap two neighbours; ignores case. */
static size_t distance(const char *a, const char *b) {
  const size_t n = strlen(a), m = strlen(b);
  if (n > WORD_MAX || m > WORD_MAX) return WORD_MAX;
  size_t rows[3][WORD_MAX + 1];
  size_t *before = rows[0], *above = rows[1], *row = rows[2];
  for (size_t j = 0; j <= m; j++) above[j] = j;
  for (size_t i = 1; i <= n; i++) {
    row[0] = i;
    for (size_t j = 1; j <= m; j++) {
      size_t best = above[j - 1] + (lower(a[i - 1]) != lower(b[j - 1]));
      if (above[j] + 1 < best) best = above[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]) &&
          before[j - 2] + 1 < best)
        best = before[j - 2] + 1;
      row[j] = best;
    }
    size_t *reuse = before;
    before = above;
    above = row;
    row = reuse;
  }
  return above[m];
}

void front_suggest_start(front_suggestion *s, const char *word) {
  *s = (front_suggestion){.word = word, .best = NULL, .distance = 0};
}

void front_suggest_try(front_suggestion *s, const char *candidate) {
  const size_t d = distance(s->word, candidate), length = strlen(s->word);
  const size_t limit = length <= 5   ? 1
                       : length <= 7 ? 2
                                     : 3; /* farther is another word, as slope and
                                           * score */
  if (d > limit || d >= length) return;
  const bool better = s->best == NULL || d < s->distance || (d == s->distance && strcmp(candidate, s->best) < 0);
  if (!better) return;
  s->best = candidate;
  s->distance = d;
}

const char *front_suggest_end(lua_State *L, const front_suggestion *s) {
  if (s->best == NULL) return "";
  return front_format(L, "; did you mean '%s'?", s->best);
}
