/* linear_rows.h: a run of tokens of one value head on the CPU: what the recurrence takes of them, from tensors and hooks. */
#ifndef LUATTN_GEN_CPU_LINEAR_ROWS_H
#define LUATTN_GEN_CPU_LINEAR_ROWS_H

#include "gen/cpu/linear_problem.h"
#include "gen/cpu/linear_recurrence.h"

/* A decay above 0. */
typedef struct linear_growth {
  bool found;
  int entry, head;
  int64_t token;
  double value;
} linear_growth;

/* One thread's room, for up to `block` tokens. */
typedef struct linear_worker {
  const linear_problem *p;
  int block;
  bool checks; /* decays above 0 */
  linear_growth growth;
  void *scratch;
  double *roots;
  double *raw_q, *raw_k, *raw_v;                /* [block][dim] */
  double *q, *k, *v, *g, *w, *r, *e, *b, *skip; /* behind hooks; b [block][state_v] */
  double *o;                                    /* [block][state_v] */
  double *red[LINEAR_HOOKS], *row;              /* [block][CHANNEL_SUMS_MAX] */
  double *dout, *du;                            /* backward: [block][v_dim], [block][state_v] */
  double *dq, *dk, *db, *dg, *dr, *de, *dv, *dw;
  double *sum_q, *sum_k; /* of the value heads of a head of q */
  double *room;          /* of the recurrence */
} linear_worker;

/* The number of tokens that a call takes at once: states are kept between them, and rows within. */
int linear_block(const linear_problem *p);

bool linear_worker_open(const linear_problem *p, int block, bool is_forward, linear_worker *out); /* false: no memory */

/* Fills the rows of tokens first .. first + count of an entry, without a state. They lie in w. */
linear_rows linear_rows_of(linear_worker *w, int entry, int head_v, int64_t first, int count);

/* The site of a hook of these tokens. */
linear_site linear_site_of(const linear_worker *w, linear_hook_id id, int entry, int head_v, int64_t first, int count);

/* Computes decays of these tokens alone, and notes the first one above 0; w->checks. */
void linear_look_for_growth(linear_worker *w, int entry, int head_v, int64_t first, int count);
luattn_status linear_growth_fail(const linear_growth *g, const char *function, luattn_error *err);

/* Copies rows of a tensor, or to it. */
void linear_load(const linear_problem *p, const cpu_view *from, int entry, int head, int64_t first, int count,
                 double *to);
void linear_store(const linear_problem *p, const cpu_view *to, int entry, int head, int64_t first, int count,
                  const double *from);

#endif
