/* front.h: turns a Lua spec into expressions. The only module that knows Lua. */
#ifndef LUATTN_GEN_FRONT_H
#define LUATTN_GEN_FRONT_H

#include "gen/spec.h"

/* Runs the spec in a sandbox (budgets of instructions and time, memory cap, no io/os/package/debug) and
 * traces its hooks by replay. `name` is the file's, for messages. Everything lives in `a`, and *out is
 * written only on LUATTN_OK. */
luattn_status front_trace(arena *a, const char *name, const char *text, size_t size, traced_spec *out,
                          luattn_error *err);

/* White box for tests: the same, with a given limit on the CPU seconds of this thread. */
luattn_status front_trace_within(arena *a, const char *name, const char *text, size_t size, double cpu_seconds,
                                 traced_spec *out, luattn_error *err);

/* White box for tests: the same, and where() gives select nodes from the start, which otherwise happens where
 * its comparisons branch into too many ways (replay.h). */
typedef struct front_options {
  double cpu_seconds; /* 0: the usual limit */
  bool selects;
} front_options;
luattn_status front_trace_with(arena *a, const char *name, const char *text, size_t size, const front_options *options,
                               traced_spec *out, luattn_error *err);

/* White box for tests: calls hook `hook` ("score_mod", "block_mask", "query_mod", "update.read", ..) of the spec in plain
 * Lua with numbers, reading inputs through `load`. The independent oracle for tracing. */
typedef struct front_oracle front_oracle;
typedef double (*front_load)(void *user, const char *input, int n_index, const long long *index);
luattn_status front_oracle_open(const char *name, const char *text, size_t size, front_load load, void *user,
                                front_oracle **out, luattn_error *err);
void front_oracle_close(front_oracle *o);
/* Whether the spec declares this field of its form. Its trace may be the identity, or no mask at
 * all. */
bool front_oracle_has(const front_oracle *o, const char *hook);
luattn_status front_oracle_set(front_oracle *o, const char *scalar_or_length, double value, luattn_error *err);
/* Sets what random() gives for its arguments; `user` is that of the oracle. */
void front_oracle_set_random(front_oracle *o, double (*random)(void *user, const long long at[4]));
/* Sets the row of which x is an element in the following calls of input mods. The caller owns the row and keeps it
 * valid for them. NULL: no row. Lengths are also head_dim and head_dim_v (head_dim in value_mod). */
void front_oracle_set_row(front_oracle *o, const double *row, int size);
luattn_status front_oracle_call(front_oracle *o, const char *hook, const double *args, int n_args, double *result,
                                luattn_error *err); /* booleans come back as 0 or 1 */
/* Of linear attention: reduce_sum of the following call gives sums[0 .. known - 1], the first ones that the hook asks
 * for. The next one is what it is given, which front_oracle_next_sum returns of the last call; false: there was none. */
void front_oracle_set_sums(front_oracle *o, const double *sums, int known);
bool front_oracle_next_sum(const front_oracle *o, double *term);
/* The same for all `count` results of the hook, in one call: of "online.prob", which is online_fwd, prob,
 * rescale and the new state; of "online.init.m" the initial state; of "online.out" out and the finals. */
luattn_status front_oracle_call_all(front_oracle *o, const char *hook, const double *args, int n_args, double *results,
                                    int count, luattn_error *err);

#endif
