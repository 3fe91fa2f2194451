#include "gen/lua/replay.h"

#include <string.h>

#define CALLS_MAX 4096
#define QUESTIONS_MAX 64

/* The possible outcomes of comparing two numbers, as a set of bits. Tracing assumes that no condition of a spec
 * compares a NaN, so there is no unordered outcome. */
enum { LESS = 1, EQUAL = 2, GREATER = 4, ANY_ORDER = 7 };

typedef struct question {
  ir_ref low, high; /* the two sides, low < high as references; high IR_NONE: a truth value */
  unsigned yes;     /* orders of (low, high) for which the condition holds */
  ir_ref condition;
  bool answer, of_element;
  int line;
  replay_result when_true; /* the joined results of answering true, once `answer` is false */
} question;

/* A reduction: the k-th of a call after the same answers about the row, in whichever replays it occurs. */
typedef struct placeholder {
  ir_op op;
  int ordinal, num_row;
  ir_ref row[QUESTIONS_MAX];
  bool answer[QUESTIONS_MAX];
} placeholder;

typedef struct replay {
  const replay_hook *hook;
  int calls;
  int count, asked; /* questions in the script; questions asked in this call */
  question script[QUESTIONS_MAX];
  replay_result result; /* of this call */
  int num_placeholders;
  placeholder placeholder[REPLAY_MAX_REDUCTIONS];
} replay;

/* The outcomes of a comparison that earlier questions of this call leave possible. */
static unsigned open_orders(const replay *r, ir_ref low, ir_ref high) {
  unsigned open = ANY_ORDER;
  for (int i = 0; i < r->asked; i++) {
    const question *q = &r->script[i];
    if (q->low == low && q->high == high) open &= q->answer ? q->yes : ~q->yes;
  }
  return open;
}

static void raise_changed(lua_State *L) __attribute__((noreturn));
static void raise_changed(lua_State *L) {
  const replay_hook *hook = front_of(L)->replay->hook;
  front_raise_at(L, hook->line,
                 "%s: gives another result when it is called again; a hook must not keep anything between "
                 "calls, nor go by the order of pairs, so use its arguments, inputs, scalars and locals",
                 hook->name);
}

static bool ask(lua_State *L, ir_ref low, ir_ref high, unsigned yes, ir_ref condition) {
  front_state *s = front_of(L);
  replay *r = s->replay;
  const unsigned open = open_orders(r, low, high);
  if ((open & ~yes) == 0) return true;
  if ((open & yes) == 0) return false;
  if (r->asked < r->count) {
    if (r->script[r->asked].condition != condition) raise_changed(L);
    return r->script[r->asked++].answer;
  }
  if (r->count == QUESTIONS_MAX) {
    front_raise_at(L, r->hook->line,
                   "%s: more than %d undecided comparisons in one call (the last in line %d); bound the loop "
                   "that makes them, or join them by min, max and clamp, which ask nothing",
                   s->hook, QUESTIONS_MAX, front_line(L));
  }
  question *q = &r->script[r->count++];
  *q = (question){.low = low,
                  .high = high,
                  .yes = yes,
                  .condition = condition,
                  .answer = true,
                  .line = front_line(L),
                  .of_element = r->hook->reduces && ir_uses(s->g, condition, VAR_SCORE)};
  r->asked = r->count;
  return true;
}

bool replay_truth(lua_State *L, ir_ref condition) {
  ir *g = front_of(L)->g;
  if (condition == ir_bool(g, true)) return true;
  if (condition == ir_bool(g, false)) return false;
  return ask(L, condition, IR_NONE, LESS, condition);
}

bool replay_compare(lua_State *L, ir_op op, ir_ref a, ir_ref b) {
  ir *g = front_of(L)->g;
  const ir_ref condition = ir_op2(g, op, a, b);
  if (condition == IR_NONE) front_no_memory(L);
  if (condition == ir_bool(g, true)) return true;
  if (condition == ir_bool(g, false)) return false;
  unsigned yes = op == IR_EQ ? EQUAL : LESS;
  if (op == IR_LE) yes |= EQUAL;
  if (a < b) return ask(L, a, b, yes, condition);
  yes = (yes & EQUAL) | (yes & LESS ? GREATER : 0);
  return ask(L, b, a, yes, condition);
}

static bool same_reduction(const placeholder *p, const placeholder *q) {
  if (p->op != q->op || p->ordinal != q->ordinal || p->num_row != q->num_row) return false;
  for (int i = 0; i < p->num_row; i++) {
    if (p->row[i] != q->row[i] || p->answer[i] != q->answer[i]) return false;
  }
  return true;
}

static uint32_t find_placeholder(lua_State *L, replay *r, ir_op op) {
  placeholder new = {.op = op, .ordinal = r->result.num_reductions};
  for (int i = 0; i < r->asked; i++) {
    if (r->script[i].of_element) continue;
    new.row[new.num_row] = r->script[i].condition;
    new.answer[new.num_row++] = r->script[i].answer;
  }
  int at = 0;
  while (at < r->num_placeholders && !same_reduction(&r->placeholder[at], &new)) at++;
  if (at == REPLAY_MAX_REDUCTIONS) {
    front_raise(
        L, "online_fwd: more than %d reductions over all its branches; reduce once, outside of the branches",
        REPLAY_MAX_REDUCTIONS);
  }
  if (at == r->num_placeholders) r->placeholder[r->num_placeholders++] = new;
  return (uint32_t)at;
}

operand replay_reduce(lua_State *L, ir_op op, operand x) {
  front_state *s = front_of(L);
  const char *name = op == IR_REDUCE_SUM ? "reduce_sum" : "reduce_max";
  if (s->mode == FRONT_LOADING || s->replay == NULL || !s->replay->hook->reduces) {
    front_raise(L, "%s: reductions over the row exist only inside online_fwd", name);
  }
  replay *r = s->replay;
  const uint32_t k = find_placeholder(L, r, op);
  if (r->result.num_reductions == REPLAY_MAX_REDUCTIONS)
    front_raise(L, "%s: more than %d reductions", name, REPLAY_MAX_REDUCTIONS);
  r->result.reduction[r->result.num_reductions++] =
      (replay_reduction){.placeholder = k, .argument = ir_to_real(s->g, x.ref)};
  return (operand){.ref = ir_variable(s->g, VAR_RED, k), .depth = x.depth + 1};
}

static replay_reduction *find_reduction(replay_result *r, uint32_t which) {
  for (int i = 0; i < r->num_reductions; i++) {
    if (r->reduction[i].placeholder == which) return &r->reduction[i];
  }
  return NULL;
}

/* out: the result of answering false, joined with that of answering true. */
static void join_reductions(lua_State *L, question *q, replay_result *out) {
  ir *g = front_of(L)->g;
  replay_result *yes = &q->when_true;
  bool apart = false;
  for (int i = 0; i < yes->num_reductions; i++) {
    replay_reduction *no = find_reduction(out, yes->reduction[i].placeholder);
    if (no != NULL) {
      if (q->of_element)
        no->argument = join_values(g, q->condition, yes->reduction[i].argument, no->argument);
      continue;
    }
    apart = true;
    if (out->num_reductions == REPLAY_MAX_REDUCTIONS) {
      front_raise_at(
          L, q->line,
          "online_fwd: more than %d reductions over all its branches; reduce once, outside of the branches",
          REPLAY_MAX_REDUCTIONS);
    }
    out->reduction[out->num_reductions++] = yes->reduction[i];
  }
  for (int i = 0; i < out->num_reductions; i++) {
    if (find_reduction(yes, out->reduction[i].placeholder) == NULL) apart = true;
  }
  if (apart && q->of_element) {
    front_raise_at(
        L, q->line,
        "online_fwd: a reduction is reached only by the elements that answer this comparison in one way; "
        "move reduce_sum and reduce_max out of the branch and reduce where(condition, x, 0)");
  }
}

static void join(lua_State *L, question *q, replay_result *out) {
  ir *g = front_of(L)->g;
  const replay_result *yes = &q->when_true;
  for (int i = 0; i < out->count; i++) {
    ir_set_line(g, (uint32_t)q->line);
    const bool masks = ir_typeof(g, out->value[i]) == IR_BOOL;
    out->value[i] = masks ? join_masks(g, q->condition, yes->value[i], out->value[i])
                          : join_values(g, q->condition, yes->value[i], out->value[i]);
    if (out->value[i] == IR_NONE) front_no_memory(L);
  }
  join_reductions(L, q, out);
}

/* Replaces placeholders by their reductions. An argument contains only placeholders made before it. */
static void place_reductions(lua_State *L, const replay *r, replay_result *out) {
  ir *g = front_of(L)->g;
  ir_ref from[REPLAY_MAX_REDUCTIONS], to[REPLAY_MAX_REDUCTIONS];
  int n = 0;
  for (int k = 0; k < r->num_placeholders; k++) {
    const replay_reduction *found = find_reduction(out, (uint32_t)k);
    if (found == NULL) continue;
    const ir_ref argument = ir_substitute(g, found->argument, from, to, n);
    const ir_ref reduction = ir_op1(g, r->placeholder[k].op, argument);
    from[n] = ir_variable(g, VAR_RED, (uint32_t)k);
    to[n++] = reduction;
  }
  for (int i = 0; i < out->count; i++) out->value[i] = ir_substitute(g, out->value[i], from, to, n);
  out->num_reductions = 0;
}

static bool same_result(const replay_result *a, const replay_result *b) {
  if (a->count != b->count || a->num_reductions != b->num_reductions) return false;
  for (int i = 0; i < a->count; i++) {
    if (a->value[i] != b->value[i]) return false;
  }
  for (int i = 0; i < a->num_reductions; i++) {
    const replay_reduction *p = &a->reduction[i], *q = &b->reduction[i];
    if (p->placeholder != q->placeholder || p->argument != q->argument) return false;
  }
  return true;
}

static void call_once(lua_State *L, int function, replay *r) {
  front_state *s = front_of(L);
  s->generation++;
  r->asked = 0;
  memset(&r->result, 0, sizeof r->result);
  r->hook->call(L, function, r->hook->user, &r->result);
  if (r->asked < r->count) raise_changed(L);
}

/* Calls the hook for one combination of answers, twice: equal expressions are one node, so a hook that keeps
 * nothing between its calls gives the same nodes. */
static void call_twice(lua_State *L, int function, replay *r) {
  if (++r->calls > CALLS_MAX) {
    front_raise_at(
        L, r->hook->line,
        "%s: its comparisons branch into more than %d ways; let one comparison stand for several, as min(x, "
        "y) >= 0 "
        "for x >= 0 and y >= 0, and max(x, y) >= 0 for `or`, use abs, relu or clamp, or bound its loops",
        r->hook->name, CALLS_MAX);
  }
  call_once(L, function, r);
  const replay_result first = r->result;
  const int asked = r->count;
  call_once(L, function, r);
  if (r->count != asked || !same_result(&first, &r->result)) raise_changed(L);
}

void replay_run(lua_State *L, int function, const replay_hook *hook, replay_result *out) {
  front_state *s = front_of(L);
  replay *r = lua_newuserdatauv(L, sizeof *r, 0); /* lives on the stack until the end */
  memset(r, 0, sizeof *r);
  r->hook = hook;
  s->replay = r;
  s->hook = hook->name;
  s->hook_line = hook->line;
  for (;;) {
    call_twice(L, function, r);
    *out = r->result;
    while (r->count > 0 && !r->script[r->count - 1].answer) join(L, &r->script[--r->count], out);
    if (r->count == 0) break;
    question *last = &r->script[r->count - 1];
    last->when_true = *out;
    last->answer = false;
  }
  place_reductions(L, r, out);
  if (ir_failed(s->g)) front_no_memory(L);
  s->replay = NULL;
  lua_pop(L, 1);
}
