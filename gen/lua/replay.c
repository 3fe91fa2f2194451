#include "gen/lua/replay.h"

#include <math.h>
#include <string.h>

#define CALLS_MAX 4096
#define CALLS_BEFORE_SELECTS 64
#define QUESTIONS_MAX 256
#define CONDITION_QUESTIONS_MAX 16

/* The possible outcomes of comparing two numbers, as a set of bits. Tracing assumes that no condition of a
 * spec compares a NaN, so there is no unordered outcome. */
enum { LESS = 1, EQUAL = 2, GREATER = 4, ANY_ORDER = 7 };

typedef struct question {
  ir_ref low, high; /* the two sides, low < high as references; high IR_NONE: a truth value */
  unsigned yes;     /* orders of (low, high) for which the condition holds */
  ir_ref condition;
  bool answer, of_element;
  int line;
} question;

/* Questions and their answers in this call of a function. */
typedef struct script {
  struct script *before; /* those asked earlier, by the hook that wants a condition's value; NULL: none */
  int count, asked;      /* questions in the script; questions asked in this call */
  int most;
  question *at;
} script;

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
  script *now; /* main, or that of a condition whose value is wanted */
  script main;
  question question[QUESTIONS_MAX];
  replay_result when_true[QUESTIONS_MAX]; /* the joined results of answering true, once the answer is false */
  replay_result result;                   /* of this call */
  int num_placeholders;
  placeholder placeholder[REPLAY_MAX_REDUCTIONS];
  bool by_element; /* a question about the row that is asked after one about an element counts as such a one */
  bool again;      /* to be tried so */
} replay;

static bool can_reduce(const replay *r) { return r->hook->reduces || r->hook->sums_channels; }

static unsigned held_orders(const question *q) { return q->answer ? q->yes : ANY_ORDER & ~q->yes; }

static unsigned swapped(unsigned orders) {
  return (orders & EQUAL) | (orders & LESS ? GREATER : 0) | (orders & GREATER ? LESS : 0);
}

/* Whether one side is a constant: then x is the other, and orders are those of (x, constant). */
static bool with_constant(const ir *g, ir_ref low, ir_ref high, ir_ref *x, double *constant, bool *swaps) {
  if (high == IR_NONE) return false;
  *swaps = ir_is_const(g, low, constant);
  *x = *swaps ? high : low;
  return *swaps || ir_is_const(g, high, constant);
}

/* The orders of (x, c) that are possible where `orders` of (x, known) hold. */
static unsigned implied_orders(unsigned orders, double known, double c, bool ints) {
  unsigned open = 0;
  if (known == c) return orders;
  const unsigned beyond = known < c ? GREATER : LESS, behind = known < c ? LESS : GREATER;
  if (orders & beyond) open |= ints && fabs(known - c) == 1 ? EQUAL | beyond : ANY_ORDER;
  if (orders & ~beyond) open |= behind;
  return open;
}

/* The outcomes of a comparison that earlier questions of this call leave possible: n > 3 says that n > 2. */
static unsigned open_orders(const ir *g, const script *s, ir_ref low, ir_ref high) {
  unsigned open = ANY_ORDER;
  ir_ref x = IR_NONE, other;
  double c = 0, known = 0;
  bool swaps = false, also = false;
  const bool has_constant = with_constant(g, low, high, &x, &c, &swaps);
  const bool ints = has_constant && ir_typeof(g, x) == IR_INT;
  for (; s != NULL; s = s->before) {
    for (int i = 0; i < s->asked; i++) {
      const question *q = &s->at[i];
      if (q->low == low && q->high == high) {
        open &= held_orders(q);
      } else if (has_constant && with_constant(g, q->low, q->high, &other, &known, &also) && other == x) {
        const unsigned held = also ? swapped(held_orders(q)) : held_orders(q);
        const unsigned implied = implied_orders(held, known, c, ints);
        open &= swaps ? swapped(implied) : implied;
      }
    }
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

/* Where conditions of where() branch too often, the hook is traced again, with their values (front.c). */
static bool may_select(front_state *s) {
  const bool may = !s->selects && s->has_conditions && !can_reduce(s->replay);
  s->wants_selects = may ? s->replay->hook->name : NULL;
  return may;
}

static void raise_questions(lua_State *L, const script *now) __attribute__((noreturn));
static void raise_questions(lua_State *L, const script *now) {
  front_state *s = front_of(L);
  may_select(s);
  front_raise_at(L, s->replay->hook->line,
                 "%s: more than %d undecided comparisons in one %s (the last in line %d); bound the loop that "
                 "makes them, or join them by min, max and clamp, which ask nothing",
                 s->hook, now->most, now->before != NULL ? "condition" : "call", front_line(L));
}

/* Whether not all elements may ask what is asked now. */
static bool asks_of_element(const front_state *s, const script *now, ir_ref condition) {
  bool after = false;
  for (int i = 0; i < now->asked; i++) after |= now->at[i].of_element;
  static const ir_var of_element[] = {VAR_SCORE, VAR_X, VAR_D};
  bool is = after && s->replay->by_element;
  for (size_t i = 0; i < sizeof of_element / sizeof *of_element; i++) is |= ir_uses(s->g, condition, of_element[i]);
  return is && can_reduce(s->replay);
}

static bool ask(lua_State *L, ir_ref low, ir_ref high, unsigned yes, ir_ref condition) {
  front_state *s = front_of(L);
  script *now = s->replay->now;
  const unsigned open = open_orders(s->g, now, low, high);
  if ((open & ~yes) == 0) return true;
  if ((open & yes) == 0) return false;
  if (now->asked < now->count) {
    if (now->at[now->asked].condition != condition) raise_changed(L);
    return now->at[now->asked++].answer;
  }
  if (now->count == now->most) raise_questions(L, now);
  now->at[now->count++] = (question){.low = low,
                                     .high = high,
                                     .yes = yes,
                                     .condition = condition,
                                     .answer = true,
                                     .line = front_line(L),
                                     .of_element = asks_of_element(s, now, condition)};
  now->asked = now->count;
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

bool replay_implies_less(lua_State *L, ir_ref a, ir_ref b) {
  const front_state *s = front_of(L);
  const unsigned yes = a < b ? LESS : GREATER;
  if (s->replay == NULL) return false;
  return (open_orders(s->g, s->replay->now, a < b ? a : b, a < b ? b : a) & ~yes) == 0;
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
  for (int i = 0; i < r->main.asked; i++) {
    if (r->question[i].of_element) continue;
    new.row[new.num_row] = r->question[i].condition;
    new.answer[new.num_row++] = r->question[i].answer;
  }
  int at = 0;
  while (at < r->num_placeholders && !same_reduction(&r->placeholder[at], &new)) at++;
  if (at == REPLAY_MAX_REDUCTIONS) {
    front_raise(L, "%s: more than %d reductions over all its branches; reduce once, outside of the branches",
                r->hook->name, REPLAY_MAX_REDUCTIONS);
  }
  if (at == r->num_placeholders) r->placeholder[r->num_placeholders++] = new;
  return (uint32_t)at;
}

/* A kernel has a row's sums behind one pass over its channels. */
static void check_channel_sum(lua_State *L, const char *name, ir_op op, operand x) {
  const front_state *s = front_of(L);
  if (op != IR_REDUCE_SUM)
    front_raise(L, "%s: linear_attention's hooks have sums over the row's channels alone; write reduce_sum(x)", name);
  if (ir_uses(s->g, x.ref, VAR_RED))
    front_raise(L,
                "%s: what is summed has a sum over the row's channels in it, and one level is possible; give what the "
                "inner sum makes as an input of its own, or compute it before the call",
                name);
}

operand replay_reduce(lua_State *L, ir_op op, operand x) {
  front_state *s = front_of(L);
  const char *name = op == IR_REDUCE_SUM ? "reduce_sum" : "reduce_max";
  if (s->mode == FRONT_LOADING || s->replay == NULL || !can_reduce(s->replay)) {
    front_raise(L, "%s: reductions over the row exist only inside online_fwd%s", name,
                s->mode == FRONT_LOADING ? ", and in hooks of linear_attention" : "");
  }
  if (s->replay->hook->sums_channels) check_channel_sum(L, name, op, x);
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
static void join_reductions(lua_State *L, const question *q, replay_result *yes, replay_result *out) {
  ir *g = front_of(L)->g;
  bool apart = false;
  for (int i = 0; i < yes->num_reductions; i++) {
    replay_reduction *no = find_reduction(out, yes->reduction[i].placeholder);
    if (no != NULL) {
      if (q->of_element) no->argument = join_values(g, q->condition, yes->reduction[i].argument, no->argument, false);
      continue;
    }
    apart = true;
    if (out->num_reductions == REPLAY_MAX_REDUCTIONS) {
      front_raise_at(L, q->line,
                     "%s: more than %d reductions over all its branches; reduce once, outside of the branches",
                     front_of(L)->hook, REPLAY_MAX_REDUCTIONS);
    }
    out->reduction[out->num_reductions++] = yes->reduction[i];
  }
  for (int i = 0; i < out->num_reductions; i++) {
    if (find_reduction(yes, out->reduction[i].placeholder) == NULL) apart = true;
  }
  replay *r = front_of(L)->replay;
  if (apart && q->of_element && !r->by_element) {
    r->again = true;
  } else if (apart && q->of_element) {
    front_raise_at(L, q->line,
                   "%s: a reduction is reached only by the elements that answer this comparison in one way; "
                   "move reduce_sum and reduce_max out of the branch and reduce where(condition, x, 0)",
                   front_of(L)->hook);
  }
}

static void join(lua_State *L, const question *q, replay_result *yes, replay_result *out) {
  ir *g = front_of(L)->g;
  for (int i = 0; i < out->count; i++) {
    ir_set_line(g, (uint32_t)q->line);
    const bool masks = ir_typeof(g, out->value[i]) == IR_BOOL;
    out->value[i] = masks ? join_masks(g, q->condition, yes->value[i], out->value[i])
                          : join_values(g, q->condition, yes->value[i], out->value[i], front_of(L)->selects);
    if (out->value[i] == IR_NONE) front_no_memory(L);
  }
  join_reductions(L, q, yes, out);
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
  r->main.asked = 0;
  memset(&r->result, 0, sizeof r->result);
  r->hook->call(L, function, r->hook->user, &r->result);
  if (r->main.asked < r->main.count) raise_changed(L);
}

/* Calls the hook for one combination of answers, twice: equal expressions are one node, so a hook that keeps
 * nothing between its calls gives the same nodes. */
static void call_twice(lua_State *L, int function, replay *r) {
  front_state *s = front_of(L);
  if (++r->calls > CALLS_MAX || (r->calls > CALLS_BEFORE_SELECTS && may_select(s))) {
    front_raise_at(L, r->hook->line,
                   "%s: its comparisons branch into more than %d ways; let one comparison stand for several, as min(x, "
                   "y) >= 0 "
                   "for x >= 0 and y >= 0, and max(x, y) >= 0 for `or`, use abs, relu or clamp, or bound its loops",
                   r->hook->name, CALLS_MAX);
  }
  call_once(L, function, r);
  const replay_result first = r->result;
  const int asked = r->main.count;
  call_once(L, function, r);
  if (r->main.count != asked || !same_result(&first, &r->result)) raise_changed(L);
}

bool replay_reduces(lua_State *L) {
  const replay *r = front_of(L)->replay;
  return r == NULL || can_reduce(r);
}

ir_ref replay_condition(lua_State *L, int function) {
  front_state *s = front_of(L);
  replay *r = s->replay;
  question asked[CONDITION_QUESTIONS_MAX];
  ir_ref when_true[CONDITION_QUESTIONS_MAX];
  script mine = {.before = r->now, .most = CONDITION_QUESTIONS_MAX, .at = asked};
  ir_ref value = IR_NONE;
  r->now = &mine;
  for (;;) {
    mine.asked = 0;
    lua_pushvalue(L, function);
    lua_call(L, 0, 1);
    if (mine.asked < mine.count) raise_changed(L);
    if (!lua_isboolean(L, -1)) break;
    value = ir_bool(s->g, lua_toboolean(L, -1));
    lua_pop(L, 1);
    while (mine.count > 0 && !asked[mine.count - 1].answer) {
      mine.count--;
      ir_set_line(s->g, (uint32_t)asked[mine.count].line);
      value = join_masks(s->g, asked[mine.count].condition, when_true[mine.count], value);
    }
    if (mine.count == 0) break;
    when_true[mine.count - 1] = value;
    asked[mine.count - 1].answer = false;
    value = IR_NONE;
  }
  r->now = mine.before;
  return value;
}

void replay_run(lua_State *L, int function, const replay_hook *hook, replay_result *out) {
  front_state *s = front_of(L);
  replay *r = lua_newuserdatauv(L, sizeof *r, 0); /* lives on the stack until the end */
  memset(r, 0, sizeof *r);
  r->hook = hook;
  r->main = (script){.most = QUESTIONS_MAX, .at = r->question};
  r->now = &r->main;
  s->replay = r;
  s->hook = hook->name;
  s->hook_line = hook->line;
  s->selects = s->all_select;
  for (int i = 0; i < s->num_select_hooks; i++) s->selects |= strcmp(s->select_hook[i], hook->name) == 0;
  for (int *n = &r->main.count;;) {
    call_twice(L, function, r);
    *out = r->result;
    while (*n > 0 && !r->question[*n - 1].answer && !r->again) {
      --*n;
      join(L, &r->question[*n], &r->when_true[*n], out);
    }
    if (r->again) {
      *n = r->calls = r->num_placeholders = 0;
      r->again = false, r->by_element = true;
      continue;
    }
    if (*n == 0) break;
    r->when_true[*n - 1] = *out;
    r->question[*n - 1].answer = false;
  }
  place_reductions(L, r, out);
  if (ir_failed(s->g)) front_no_memory(L);
  s->replay = NULL;
  lua_pop(L, 1);
}
