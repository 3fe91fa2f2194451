#include "tests/branches/branches.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- the random function ---- */

static int pick(branches *p, int n) {
  p->seed = p->seed * 6364136223846793005u + 1442695040888963407u;
  return (int)((p->seed >> 33) % (unsigned)n);
}

static int node(branches *p, char op, int a, int b, double number) {
  p->node[p->num_nodes] = (branches_node){op, a, b, number};
  return p->num_nodes++;
}

static int number(branches *p) {
  static const double some[] = {0.5, -0.25, 1.5, 2, -1};
  return node(p, 'k', -1, -1, some[pick(p, 5)]);
}

static int leaf(branches *p) { return node(p, "xxxwcir"[pick(p, 7)], -1, -1, 0); }

/* Builds the argument of a risky function. One in three is just the integer i; at i = 0 every risky function
 * has a pole or a domain boundary. */
static int argument(branches *p) {
  if (pick(p, 3) == 0) return node(p, 'i', -1, -1, 0);
  const int a = leaf(p);
  if (pick(p, 2) == 0) return a;
  const int scaled = node(p, '*', leaf(p), number(p), 0);
  return node(p, "+-*"[pick(p, 3)], a, scaled, 0);
}

static int assign(branches *p, int value) {
  p->statement[p->num_statements] = (branches_statement){.value = value, .then = -1, .otherwise = -1, .next = -1};
  return p->num_statements++;
}

static int choice(branches *p, int left, char compare, double limit, int then, int otherwise) {
  p->statement[p->num_statements] = (branches_statement){-1, left, compare, limit, then, otherwise, -1};
  return p->num_statements++;
}

/* Builds the argument of exp. A gentle function uses i plus a quarter of a leaf, so that exp is not steep in
 * the taken arm. */
static int argument_of_exp(branches *p) {
  if (!p->gentle) return argument(p);
  const int i = node(p, 'i', -1, -1, 0);
  return node(p, '+', i, node(p, '*', leaf(p), node(p, 'k', -1, -1, 0.25), 0), 0);
}

/* Adds the statement r = r + k * f(e) in an arm where f is safe: sqrt, log, 1 / e and powers for positive e,
 * exp for e that is not large. */
static int risky(branches *p) {
  const char op = "sl/pe"[pick(p, 5)];
  const int e = op == 'e' ? argument_of_exp(p) : argument(p),
            f = node(p, op, e, -1, (double[]){0.5, 1.5, -0.5}[pick(p, 3)]);
  const int update = assign(p, node(p, '+', node(p, 'r', -1, -1, 0), node(p, '*', f, number(p), 0), 0));
  const double limit = op == 'e' ? 1 : p->gentle ? 0.5 : op == 's' ? 0 : 0.1;
  return choice(p, e, op == 'e' ? '<' : '>', limit, update, pick(p, 3) == 0 ? assign(p, argument(p)) : -1);
}

static int simple(branches *p) {
  const int update = assign(p, node(p, "+*"[pick(p, 2)], node(p, 'r', -1, -1, 0), pick(p, 2) ? leaf(p) : number(p), 0));
  return choice(p, -1, "<>"[pick(p, 2)], 1 + pick(p, 6), update, -1);
}

static int block(branches *p, int depth) {
  int first = -1, *link = &first;
  for (int n = 1 + pick(p, 2); n > 0; n--) {
    int s = pick(p, 3) == 0 ? simple(p) : risky(p);
    if (depth > 0 && pick(p, 2) == 0) {
      const int inner = block(p, depth - 1), other = pick(p, 2) == 0 ? risky(p) : -1;
      p->statement[s].next = -1;
      s = pick(p, 2) == 0 ? choice(p, -1, '<', 2 + pick(p, 5), inner, s)
                          : choice(p, argument(p), '>', (double[]){0.3, 5, -4}[pick(p, 3)], inner, other);
    }
    *link = s;
    link = &p->statement[s].next;
  }
  return first;
}

void branches_random(branches *p, uint64_t seed, bool gentle) {
  memset(p, 0, sizeof *p);
  p->gentle = gentle;
  p->seed = seed * 0x9e3779b97f4a7c15u + 1;
  const int start = assign(p, node(p, "xk"[pick(p, 2)], -1, -1, 0.5));
  const int body = block(p, 1), last = simple(p);
  int s = body;
  while (p->statement[s].next >= 0) s = p->statement[s].next;
  p->statement[s].next = last;
  p->statement[start].next = body;
  p->first = start;
}

/* ---- its value and derivatives ---- */

static branches_dual chain(branches_dual x, double value, double slope) {
  return (branches_dual){value, slope * x.by_x, slope * x.by_w, slope * x.by_c};
}

static branches_dual linear(branches_dual x, double fx, branches_dual y, double fy, double value) {
  return (branches_dual){value, fx * x.by_x + fy * y.by_x, fx * x.by_w + fy * y.by_w, fx * x.by_c + fy * y.by_c};
}

static double steepness(const branches *p) { return p->gentle ? 4 : 100; }

static branches_dual value_of(const branches *p, int n, const branches_point *at, branches_dual r) {
  const branches_node *e = &p->node[n];
  branches_dual a = {0}, b = {0};
  if (e->a >= 0) a = value_of(p, e->a, at, r);
  if (e->b >= 0) b = value_of(p, e->b, at, r);
  switch (e->op) {
    case 'x':
      return (branches_dual){at->x, 1, 0, 0};
    case 'w':
      return (branches_dual){at->w, 0, 1, 0};
    case 'c':
      return (branches_dual){at->c, 0, 0, 1};
    case 'i':
      return (branches_dual){at->i, 0, 0, 0};
    case 'k':
      return (branches_dual){e->number, 0, 0, 0};
    case '+':
      return linear(a, 1, b, 1, a.value + b.value);
    case '-':
      return linear(a, 1, b, -1, a.value - b.value);
    case '*':
      return linear(a, b.value, b, a.value, a.value * b.value);
    case 's':
      return chain(a, sqrt(a.value), 0.5 / sqrt(a.value));
    case 'l':
      return chain(a, log(a.value), 1 / a.value);
    case '/':
      return chain(a, 1 / a.value, -1 / (a.value * a.value));
    case 'p':
      return chain(a, pow(a.value, e->number), e->number * pow(a.value, e->number - 1));
    case 'e':
      return chain(a, exp(steepness(p) * (a.value - 1)), steepness(p) * exp(steepness(p) * (a.value - 1)));
    default:
      return r;
  }
}

static branches_dual run(const branches *p, int s, const branches_point *at, branches_dual r) {
  for (; s >= 0; s = p->statement[s].next) {
    const branches_statement *t = &p->statement[s];
    if (t->value >= 0) {
      r = value_of(p, t->value, at, r);
      continue;
    }
    const double left = t->left < 0 ? at->position : value_of(p, t->left, at, r).value;
    r = run(p, (t->compare == '>' ? left > t->limit : left < t->limit) ? t->then : t->otherwise, at, r);
  }
  return r;
}

/* Bounds the result r, and so what is computed from it: 3 r / (1 + |r|) + x / 8 + w / 16. */
branches_dual branches_value(const branches *p, const branches_point *at) {
  const branches_dual r = run(p, p->first, at, (branches_dual){0});
  const double d = 1 + fabs(r.value);
  const branches_dual bounded = chain(r, 3 * r.value / d, 3 / (d * d));
  const branches_dual rest = {0.125 * at->x + 0.0625 * at->w, 0.125, 0.0625, 0};
  return linear(bounded, 1, rest, 1, bounded.value + rest.value);
}

static double norm_steepness(const branches *p) { return p->gentle ? 4 : 40; }

void branches_norm(const branches *p, double rho, double *norm, double *by_rho) {
  const bool large = rho > 2;
  *norm = large ? 1 / rho : exp(norm_steepness(p) * (rho - 2)) / 2;
  *by_rho = large ? -1 / (rho * rho) : norm_steepness(p) * *norm;
}

/* ---- in Lua ---- */

typedef struct writer {
  char *out;
  size_t size, used;
} writer;

__attribute__((format(printf, 2, 3))) static void put(writer *w, const char *format, ...) {
  va_list args;
  va_start(args, format);
  const int n = vsnprintf(w->out + w->used, w->used < w->size ? w->size - w->used : 0, format, args);
  va_end(args);
  w->used += (size_t)n;
  if (w->used > w->size) w->used = w->size;
}

/* Spelling of a hook's arguments in Lua. */
typedef struct names {
  const char *x, *i, *position, *head;
} names;

static void put_node(writer *w, const branches *p, int n, const names *s) {
  static const char *const call[] = {['s'] = "sqrt(", ['l'] = "log(", ['/'] = "(1 / ", ['p'] = "(", ['e'] = "exp("};
  const branches_node *e = &p->node[n];
  switch (e->op) {
    case 'x':
      put(w, "%s", s->x);
      return;
    case 'w':
      put(w, "w[%s]", s->head);
      return;
    case 'i':
      put(w, "%s", s->i);
      return;
    case 'c':
    case 'r':
      put(w, "%c", e->op);
      return;
    case 'k':
      put(w, "(%g)", e->number);
      return;
    case '+':
    case '-':
    case '*':
      put(w, "(");
      put_node(w, p, e->a, s);
      put(w, " %c ", e->op);
      put_node(w, p, e->b, s);
      put(w, ")");
      return;
    default:
      put(w, "%s", call[(int)e->op]);
      if (e->op == 'e') put(w, "%g * (", steepness(p));
      put_node(w, p, e->a, s);
      put(w, e->op == 'p' ? " ^ %g)" : e->op == 'e' ? " - 1))" : ")", e->number);
  }
}

static void put_statements(writer *w, const branches *p, int s, const names *n, int indent) {
  for (; s >= 0; s = p->statement[s].next) {
    const branches_statement *t = &p->statement[s];
    if (t->value >= 0) {
      put(w, "%*sr = ", indent, "");
      put_node(w, p, t->value, n);
      put(w, "\n");
      continue;
    }
    put(w, "%*sif ", indent, "");
    if (t->left < 0)
      put(w, "%s", n->position);
    else
      put_node(w, p, t->left, n);
    put(w, " %c %g then\n", t->compare, t->limit);
    put_statements(w, p, t->then, n, indent + 2);
    if (t->otherwise >= 0) put(w, "%*selse\n", indent, "");
    put_statements(w, p, t->otherwise, n, indent + 2);
    put(w, "%*send\n", indent, "");
  }
}

static void put_function(writer *w, const branches *p, const names *n, const char *name, const char *parameters) {
  put(w, "local function %s(%s)\n  local r = 0\n", name, parameters);
  put_statements(w, p, p->first, n, 2);
  put(w, "  return 3 * r / (1 + abs(r)) + 0.125 * %s + 0.0625 * w[%s]\nend\n", n->x, n->head);
}

size_t branches_lua(const branches *p, branches_kind kind, char *out, size_t size) {
  static const names of[] = {{"score", "abs(q_idx - kv_idx)", "kv_idx", "h"},
                             {"x", "(pos % 3)", "d", "h"}, /* of a query head, */
                             {"s", "where(s > 0.5, 1, 0)", "3 * s", "h"},
                             {"x", "(pos % 3)", "d", "h * (heads // heads_kv)"}}; /* and of a kv head */
  writer w = {out, size, 0};
  if (kind == BRANCHES_SCORE) {
    put_function(&w, p, &of[kind], "f", "score, b, h, q_idx, kv_idx");
    put(&w, "return attention { name = 'branches', score_mod = f,");
  } else if (kind == BRANCHES_MODS) {
    put_function(&w, p, &of[kind], "f", "x, b, h, pos, d");
    put_function(&w, p, &of[BRANCHES_KINDS], "g", "x, b, h, pos, d");
    put(&w, "return attention { name = 'branches', query_mod = f, key_mod = g, value_mod = g,");
  } else {
    put_function(&w, p, &of[kind], "f", "s, h, q_idx");
    put(&w,
        "return attention { name = 'branches', online_func = {\n"
        "  online_rowscales = { l = 0 },\n"
        "  online_fwd = function(scores, rowscales, b, h, q_idx)\n"
        "    local y = f(scores, h, q_idx)\n"
        "    return y, { l = rowscales.l + reduce_sum(y * y) }, 1\n"
        "  end,\n"
        "  online_fwd_epilogue = function(o, rowscales, b, h, q_idx)\n"
        "    if rowscales.l > 2 then return o / rowscales.l, {} end\n"
        "    return o * (exp(%g * (rowscales.l - 2)) / 2), {}\n"
        "  end },\n",
        norm_steepness(p));
  }
  put(&w, "  inputs = { w = { axes = {'h'}, grad = true } }, scalars = { c = 0.75 } }\n");
  return w.used;
}
