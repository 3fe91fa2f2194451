/* linear_problem.h: for linear_calls.c and linear_erasing_calls.c: a call's random numbers, its rows as the recurrence takes
 * them, what a kernel is given, and comparisons. */
#ifndef LUATTN_TESTS_LINEAR_PROBLEM_H
#define LUATTN_TESTS_LINEAR_PROBLEM_H

#include <stdint.h>

#include "gen/cpu/linear_recurrence.h"
#include "tests/ptx/linear_calls.h"

enum { POOL_ROWS = 9 };

typedef struct problem {
  const call *c;
  int rows; /* of all entries, and behind them some that are nobody's */
  int cu[MOST_ENTRIES + 1];
  uint16_t *q, *k, *v, *dout; /* [rows][heads][dim + padding] */
  float *in[5];               /* [rows][heads_v]; of a head */
  float *pool;                /* [POOL_ROWS][heads_v][K][V] */
  uint16_t *pool_half;        /* rounded to its type */
} problem;

/* A tensor of a pass. */
typedef struct side {
  const uint16_t *rows;
  int heads, dim;
} side;
typedef struct sides {
  side query, key, value;
} sides;

typedef struct on_device {
  LuattnLinearParams p;
  LuattnTensorMaps maps;
} on_device;

typedef struct error {
  double off, size;
} error;

problem linear_make_problem(const call *c);
void linear_free_problem(problem *x);

bool linear_is_bf16(const call *c);
bool linear_word(const char *what, const char *name);
bool linear_is_erasing(const call *c);
/* Decays of a token and head. */
int linear_gate_width(const call *c);
float linear_read_half(const call *c, uint16_t x);
/* Elements from one token's row to the next. */
int linear_row_size(const call *c, int heads, int dim);
int linear_pool_row(const call *c, int entry);
bool linear_left_alone(const call *c, int entry);
/* The place of element i of an entry's [tokens][dim] in the rows of its value head. */
size_t linear_place(const problem *x, int entry, int hv, int dim, int i);
/* Input i at a row, and value head. */
double linear_in_at(const problem *x, int i, int row, int hv);

/* An entry's gradients of o; its rows: the caller frees q, in which all of them are. */
double *linear_dout_of(const problem *x, int entry, int hv);
linear_rows linear_rows_of(const problem *x, int entry, int hv);

/* The place of element (k, v) of a pool's row and head. */
size_t linear_state_at(const call *c, int row, int hv, int k, int v);
double linear_got_state(const call *c, const char *bytes, size_t at);
/* What a pass takes as query, key and value. */
sides linear_sides_of(const problem *x, linear_pass pass);
LuattnTensor linear_tensor_of(const problem *x, side s);
LuattnTensorMap linear_map_of(const problem *x, const LuattnTensor *t, side s);
on_device linear_upload(const problem *x, linear_pass pass);
void linear_take_back(on_device *d, const call *c);
/* Slots of chunks of all value heads; whether chains take T of each, room for which the caller releases, and what makes it. In
 * that room is also what each chunk leaves. */
int linear_chunks_of(const problem *x);
bool linear_takes_inverses(const call *c);
void *linear_room_of_inverses(const problem *x);
void linear_set_inverses(const problem *x, on_device *d, void *room);
void linear_make_inverses(const problem *x, void *module, on_device *d);
/* What a launch left in the pool, if it has last states; and rows of value heads. */
char *linear_take_pool(const on_device *d, const call *c);
uint16_t *linear_take_rows(const problem *x, const LuattnTensor *t, int dim);
/* Blocks that share `dim` channels of each value head, and threads of each. */
int linear_blocks(const call *c, int dim, int block);
int linear_threads(const linear_kernel *k);

void linear_add_error(error *e, double got, double want);
/* Of an entry's and head's last state in the pool, unless it has none. */
void linear_add_states(error *e, const problem *x, int entry, int hv, const char *pool, const double *want);
void linear_expect(const char *what, int entry, error e, double most);
/* Rows behind those of entries, and numbers between rows, are as they were. */
void linear_expect_untouched(const char *what, const problem *x, int dim, const uint16_t *rows);

#endif
