/* numbers.h: the arguments and results of hooks that run in plain Lua (FRONT_NUMBERS). */
#ifndef LUATTN_GEN_LUA_NUMBERS_H
#define LUATTN_GEN_LUA_NUMBERS_H

#include "gen/lua/names.h"
#include "gen/lua/replay.h"

typedef struct front_numbers {
  front_load load;
  double (*random)(void *user, const long long at[4]); /* NULL: random() is refused */
  void *user;
  long long length[NAMES_LENGTHS * IR_MAX_AXES]; /* of axis a from NAMES_LENGTHS * a on */
  int head_dim, head_dim_v;
  const double *row; /* the row of which x is an element, in an input mod; NULL: x[..] is refused */
  int row_size;
  /* Sums over a row's channels that are known, how many of them the hook has asked for, and what the next one is of. */
  const double *sums;
  int known_sums, asked_sums;
  double next_term;
  double scalar[32];
  double variable[VAR_COUNT * IR_MAX_AXES]; /* likewise */
  double state[SPEC_MAX_STATE], final[SPEC_MAX_FINAL];
  double result[REPLAY_MAX_RESULTS];
} front_numbers;

#endif
