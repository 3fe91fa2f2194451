/* probe_test.c: the properties that probes find in scores and online functions, and the code that kernels
 * then omit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/gen/emit/emitted.h"

/* Bounds on the scores replace a running maximum, if P at either bound is in the type's range. */
static void test_bounded_scores(void **state) {
  (void)state;
  const char *const gone[] = {"num_reductions = 1;", "has_rescale = false;", "mask_by_inf = true;", "op_exp2(score)",
                              NULL},
                    *const kept[] = {"num_reductions = 2;", "has_rescale = true;", NULL};
  const char *cap = "return attention { name = 'a', score_mod = softcap(50) }",
             *low = "return attention { name = 'a', score_mod = softcap(5) }",
             *sink = "return attention { name = 'a', score_mod = softcap(50), online_func = softmax_one }";
  luattn_target half = target, exact = target;
  half.dtype = LUATTN_F16;
  exact.dtype = LUATTN_F32;
  check(cap, gone, NULL);
  check(sink, gone, NULL);
  check_for(&half, cap, kept, NULL); /* exponents span 144 bits, more than f16's 30 */
  check_for(&half, low, gone, NULL);
  check_for(&exact, low, kept, NULL);
  check("return attention { name = 'a', score_mod = softcap(200) }", kept, NULL);
  check("return attention { name = 'a', scalars = { c = 50 }, score_mod = softcap('c') }", kept, NULL);
  check(
      "return attention { name = 'a', inputs = { x = { axes = {'h'} } }, score_mod = softcap(50),\n"
      "  online_func = attention_sink('x') }",
      kept, NULL); /* the sink has no bounds */
  check(
      "return attention { name = 'a', score_mod = softcap(5), online_func = { name = 'f',\n"
      "  online_rowscales = { m = -1e37, l = 0 },\n"
      "  online_fwd = function(scores, r, b, h, q)\n"
      "    local m = max(r.m, reduce_max(scores))\n"
      "    local c, p = exp(r.m - m), exp(scores - m)\n"
      "    return p, { m = m, l = r.l * c + reduce_sum(p) }, c\n"
      "  end,\n"
      "  online_fwd_epilogue = function(o, r, b, h, q) return o / (r.l + 1) end,\n"
      "  backward = function(dp, p, r, delta, b, h, q, kv, s) return p * dp end } }",
      kept, NULL); /* the result depends on the maximum */
}

/* Checks whether tiles can be skipped: scores must decrease with distance, and the function must be a softmax
 * whose results tolerate the loss of negligible tiles. */
static void check_reach(const char *rest, bool want) {
  const char *const yes = "has_score_bounds = true;", *const no = "has_score_bounds = false;";
  char source[1024];
  luattn_target t = target;
  t.arch = 90;
  snprintf(source, sizeof source,
           "return attention { name = 'a', inputs = { x = { axes = {'h'} }, t = { axes = {'n'} } },\n"
           "  %s }",
           rest);
  for (int pass = LUATTN_FORWARD; pass <= LUATTN_BACKWARD; pass++) {
    t.pass = (luattn_pass)pass;
    check_for(&t, source, LIST(want ? yes : no), NULL);
  }
  t.family = 1 + (int)LUATTN_SM80;
  check_for(&t, source, LIST(no), NULL); /* it computes every tile */
}

static void test_tiles_without_weight(void **state) {
  (void)state;
  check_reach("score_mod = alibi()", true);
  check_reach("score_mod = alibi('x'), block_mask = causal(), online_func = softmax_one", true);
  check_reach("score_mod = alibi('x'), online_func = attention_sink('x')", true);
  check_reach("score_mod = function(s, b, h, q, kv) return 50 * tanh(s / 50) - x[h] * sqrt(abs(q - kv)) end", true);
  check_reach("score_mod = function(s, b, h, q, kv) return s - 2 * log(1 + abs(q - kv)) end",
              false); /* decreases too slowly */
  check_reach("score_mod = function(s, b, h, q, kv) return s + t[kv] - x[h] * abs(q - kv) end", false);
  check_reach("score_mod = function(s, b, h, q, kv) return s * x[h] end", false);
  check_reach("score_mod = function(s, b, h, q, kv) return s - q end", false); /* the same for all keys */
  check_reach("block_mask = causal()", false);
  check_reach("score_mod = alibi(), online_func = sigmoid_attention", false);
  check_reach(
      "score_mod = alibi(), online_func = { name = 'f',\n"
      "  online_rowscales = { m = -math.huge, l = 0 }, final_rowscales = { 'lse' },\n"
      "  online_fwd = function(scores, r, b, h, q)\n"
      "    local m = max(r.m, reduce_max(scores))\n"
      "    local c, p = exp(r.m - m), exp(scores - m)\n"
      "    return p, { m = m, l = r.l * c + reduce_sum(p) }, c\n"
      "  end,\n"
      "  online_fwd_epilogue = function(o, r, b, h, q) return o / sin(1e6 * r.l), { lse = r.m + log(r.l) } "
      "end,\n"
      "  backward = function(dp, p, r, delta, b, h, q, kv, s) return p * p * dp end }",
      false);
}

static void test_softmax_choices(void **state) {
  (void)state;
  check("return attention { name = 'a' }",
        LIST("num_reductions = 2;", "prob_term = 1;", "mask_by_inf = true;", "has_rescale = true;",
             "i == 0 ? REDUCE_MAX : i == 1 ? REDUCE_SUM_DEFERRED"),
        NULL);
}

/* A sum that the same step reads cannot be deferred. */
static void test_sum_in_use_is_not_deferred(void **state) {
  (void)state;
  check(
      "return attention { name = 'a', online_func = { name = 'f', online_rowscales = { c = 0 },\n"
      "  online_fwd = function(scores, r, b, h, q) return scores, { c = max(r.c, reduce_sum(abs(scores))) } "
      "end } }",
      LIST("REDUCE_SUM"), LIST("REDUCE_SUM_DEFERRED"));
}

/* A factor that may be zero or negative would turn a mask value of -inf into NaN or +inf. */
static void test_mask_by_inf_is_refused(void **state) {
  (void)state;
  check("return attention { name = 'a', online_func = identity }", LIST("mask_by_inf = false;"), NULL);
  check(
      "return attention { name = 'a', scalars = { beta = 1 }, online_func = { name = 'f',\n"
      "  online_fwd = function(scores, r, b, h, q) return exp(scores * beta) end } }",
      LIST("mask_by_inf = false;"), NULL);
  check(
      "return attention { name = 'a', online_func = { name = 'f',\n"
      "  online_rowscales = { m = -1e300 * 1e300, l = 0 },\n"
      "  online_fwd = function(scores, r, b, h, q)\n"
      "    local m = max(r.m, reduce_max(scores))\n"
      "    local c, p = exp(r.m - m), exp(scores - m)\n"
      "    return p, { m = m, l = r.l * c + reduce_sum(p) }, c\n"
      "  end,\n"
      "  online_fwd_epilogue = function(o, r, b, h, q) return o / r.l end } }",
      LIST("mask_by_inf = false;"), NULL); /* a first step without scores would compute exp(inf - inf) */
  check(
      "return attention { name = 'a', scalars = { beta = 1 }, online_func = { name = 'f',\n"
      "  online_fwd = function(scores, r, b, h, q) return where(beta > 1e5, 1, exp(scores)) end } }",
      LIST("mask_by_inf = false;"), NULL); /* beyond the scalars of probes */
  check("return attention { name = 'a', online_func = sigmoid_attention }", LIST("mask_by_inf = true;"), NULL);
}

/* A score of 0 excludes an element from sums that are linear in scores, but not from sums of exponentials. */
static void test_mask_by_zero(void **state) {
  (void)state;
  check("return attention { name = 'a', online_func = identity }", LIST("mask_by_zero = true;"), NULL);
  check(
      "return attention { name = 'a', online_func = { name = 'f', online_rowscales = { c = 0, r = 1 },\n"
      "  online_fwd = function(scores, r, b, h, q)\n"
      "    local c = r.c + reduce_sum(abs(scores))\n"
      "    local n = stop_gradient(max(c, 1))\n"
      "    return scores / n, { c = c, r = n }, r.r / n\n"
      "  end } }",
      LIST("mask_by_zero = true;"), NULL); /* r is max(c, 1) after every step */
  check(
      "return attention { name = 'a', scalars = { beta = 1 }, online_func = { name = 'f',\n"
      "  online_fwd = function(scores, r, b, h, q) return exp(scores * beta) end } }",
      LIST("mask_by_zero = false;"), NULL);
}

/* In forward the values of a q tile's rows stay in registers, and columns are read for each tile. */
static void test_score_reads(void **state) {
  (void)state;
  static const struct {
    const char *bias, *index, *reads, *columns;
  } cases[] = {{"'h'", "h", "score_reads = 0;", "reads_columns = false;"},
               {"'h', 'q'", "h, q", "score_reads = 0;", "reads_columns = false;"},
               {"'h', 'kv'", "h, kv", "score_reads = 1;", "reads_columns = true;"},
               {"'h', 'q', 'kv'", "h, q, kv", "score_reads = 2;", "reads_columns = false;"},
               {"'h', 64", "h, min(abs(q - kv), 63)", "score_reads = 2;", "reads_columns = false;"}};
  luattn_target forward = target;
  forward.pass = LUATTN_FORWARD;
  check_for(&forward, "return attention { name = 'a', score_mod = softcap(10) }",
            LIST("score_reads = 0;", "reads_columns = false;"), NULL);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[512];
    snprintf(text, sizeof text,
             "return attention { name = 'a', inputs = { bias = { axes = {%s} } },\n"
             "  score_mod = function(s, b, h, q, kv) return s + bias[{%s}] end }",
             cases[i].bias, cases[i].index);
    check_for(&forward, text, LIST(cases[i].reads, cases[i].columns), NULL);
  }
  /* A bias row, which only the sm90 forward has. */
  const char *both =
      "return attention { name = 'a', inputs = { t = { axes = {'q', 'kv'} }, u = { axes = {'kv'} } },\n"
      "  score_mod = function(s, b, h, q, kv) return s + t[{q, kv}] + u[kv] end }";
  check_for(&forward, both, LIST("score_reads = 2;", "has_bias_row = false;", "reads_columns = false;"), NULL);
  forward.arch = 90;
  check_for(&forward, both, LIST("score_reads = 2;", "has_bias_row = true;", "reads_columns = true;"), NULL);
}

/* Row and Col are filled only if hooks read them. A kernel may omit values that only `keep` would read. */
static void test_who_reads(void **state) {
  (void)state;
#define INPUTS "inputs = { doc = { axes = {'n'}, dtype = 'i32' }, x = { axes = {'q'} }, y = { axes = {'kv'} } }"
#define DOCUMENTS "block_mask = function(b, h, q, kv) return eq(doc[q], doc[kv]) end"
  static const struct {
    const char *mods, *row, *col;
  } cases[] = {{DOCUMENTS, "only_keep_reads_row = true;", "score_reads_col = false;"},
               {DOCUMENTS ", score_mod = function(s, b, h, q, kv) return s + y[kv] end", "only_keep_reads_row = true;",
                "score_reads_col = true;"},
               {DOCUMENTS ", score_mod = function(s, b, h, q, kv) return s + x[q] end", "only_keep_reads_row = false;",
                "score_reads_col = false;"},
               {DOCUMENTS ", online_func = { name = 'f', online_fwd = function(s, r, b, h, q)\n"
                          "  return sigmoid(s + x[q]) end }",
                "only_keep_reads_row = false;", "score_reads_col = false;"},
               {DOCUMENTS ", online_func = { name = 'f', online_fwd = function(s, r, b, h, q) return s end,\n"
                          "  online_fwd_epilogue = function(o, r, b, h, q) return o * x[q] end }",
                "only_keep_reads_row = false;", "score_reads_col = false;"},
               {"block_mask = function(b, h, q, kv)\n"
                "  local n = q for i = 1, 12 do n = (n * 5 + i) // 3 end return n <= kv end",
                "only_keep_reads_row = false;", "score_reads_col = false;"}, /* too long to invert */
               {"score_mod = softcap(10)", "only_keep_reads_row = false;", "score_reads_col = false;"}};
  luattn_target forward = target;
  forward.pass = LUATTN_FORWARD;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[1024];
    snprintf(text, sizeof text, "return attention { name = 'a', " INPUTS ",\n  %s }", cases[i].mods);
    check_for(&forward, text, LIST(cases[i].row), NULL);
    check_for(&forward, text, LIST(cases[i].col), NULL);
  }
#undef DOCUMENTS
#undef INPUTS
}

/* Tests how kernels represent the kept positions of a row and a column. Columns with more than an interval,
 * or more than one per row of a grid, evaluate a predicate that is cheap. */
static void test_lines(void **state) {
  (void)state;
#define LINES(row, start, row_period, column, column_period)                                    \
  "row_intervals = " #row ";", "row_from_start = " #start ";", "row_period = " #row_period ";", \
      "column_intervals = " #column ";", "column_period = " #column_period ";", NULL
  static const struct {
    const char *keep, *line[6];
  } cases[] = {{"kv <= q", {LINES(1, true, 0, 1, 0)}},
               {"abs(q - kv) <= 9", {LINES(1, false, 0, 1, 0)}},
               {"kv < 9 or abs(q - kv) <= 9", {LINES(2, true, 0, 1, 0)}},
               {"kv < 9 or q < 9 or abs(q - kv) <= 9", {LINES(2, true, 0, 0, 0)}},
               {"ne(kv, q)", {LINES(2, true, 0, 0, 0)}},
               {"abs(q - kv) <= 9 and eq((q - kv) % 3, 1)", {LINES(1, false, 3, 0, 0)}},
               {"abs(q // 20 - kv // 20) < 2 and kv % 20 < 7 and q % 20 < 9", {LINES(1, false, 20, 1, 20)}},
               {"eq(q // 4, kv // 4) or eq((q * 3 + kv) % 64 // 2 * 5 // 3 % 9 // 2, (kv * 7 + 1) % 5 // 2)",
                {LINES(0, false, 0, 0, 0)}},
               {"where(kv < 64, q < 64 and eq(q // 8, kv // 8),"
                "  where(q < 64, (kv - 64) // 8 < q // 8, (kv - 64) // 8 <= (q - 64) // 8))",
                {LINES(2, false, 0, 2, 0)}}};
  luattn_target wanted = target;
  wanted.arch = 90;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[1024];
    snprintf(text, sizeof text, "return attention { name = 'a', block_mask = function(b, h, q, kv) return %s end }",
             cases[i].keep);
    check_for(&wanted, text, cases[i].line, NULL);
  }
#undef LINES
}

/* A position looks up the statistics of its tile's block. An expression of a position looks up all blocks
 * that it may reach. */
static void test_block_of_tile(void **state) {
  (void)state;
#define MASK(keep)                                                                      \
  "return attention { name = 'a', inputs = { doc = { axes = {'n'}, dtype = 'i32' } }, " \
  "block_mask = function(b, h, q, kv) return " keep " end }"
  luattn_target wide = target;
  wide.pass = LUATTN_BACKWARD, wide.arch = 90, wide.head_dim = wide.head_dim_v = 256;
  const char *both = MASK("eq(doc[q], doc[kv]) and eq(doc[q], doc[kv // 2])");
  const char *const blocks[] = {"block_bounds(p.scratch.stats[0], p.inputs.input[0], 0, ",
                                "block_bounds(p.scratch.stats[1], ", NULL};
  check(MASK("eq(doc[q], doc[kv])"), blocks, LIST("stat_bounds("));
  check(both, blocks, NULL);
  check(both, LIST("stat_bounds(p.scratch.stats["), NULL);
  /* two thread blocks share 128 keys */
  const char *const shared[] = {
      "walk_rows = 64; walk_columns = 128;",
      "block_bounds_size(int i) { return i == 0 ? 64 : i == 1 ? 128 : i == 2 ? 64 : i == 3 ? 128 : 1; }",
      /* for both, minima and maxima, and the set of their numbers */
      "block_bounds_is_set(int i) { return i == 0 ? false : i == 1 ? false : i == 2 ? "
      "true : i == 3 ? true : false; }",
      "block_bounds(p.scratch.stats[0], p.inputs.input[0], 0, 64, "
      "grad_offset(p.inputs.input[0]), ivi_make(q0, q1))",
      "block_bounds(p.scratch.stats[1], p.inputs.input[0], 0, 128, "
      "grad_offset(p.inputs.input[0]), ivi_make(kv0, kv1))",
      NULL};
  check_for(&wide, MASK("eq(doc[q], doc[kv])"), shared, NULL);
#undef MASK
}

/* Division by a positive constant needs less code for bounds; a divisor that may be 0 or negative needs all
 * cases. */
static void test_bounds_by_constant(void **state) {
  (void)state;
#define BLOCKS(by)                                                                                   \
  "return attention { name = 'a', block_mask = function(b, h, q, kv) return q // " by " <= kv % " by \
  " end "                                                                                            \
  "}"
  const char *const positive[] = {"ivi_floordiv_positive(ivi_make(q0, q1), 24, 24)",
                                  "ivi_mod_positive(ivi_make(kv0, kv1), 24, 24)", NULL};
  const char *const any[] = {"ivi_floordiv(ivi_make(q0, q1), ivi_point(", "ivi_mod(ivi_make(kv0, kv1), ivi_point(",
                             NULL};
  check(BLOCKS("24"), positive, NULL);
  check(BLOCKS("(-24)"), any, LIST("_positive("));
  check(BLOCKS("(q_len - 5)"), any, LIST("_positive("));
#undef BLOCKS
}

/* A term that depends only on the distance becomes a hook of its own, if it is long or reads memory. A slope
 * times a distance is short. */
static void test_distance_term(void **state) {
  (void)state;
  const char *const some[] = {"has_distance_term = true;", "dot + term;", NULL};
  const char *const none[] = {"has_distance_term = false;", NULL};
  luattn_target forward = target;
  forward.pass = LUATTN_FORWARD;
  check_for(&forward,
            "return attention { name = 'a', inputs = { bias = { axes = {'h', 64} } },\n"
            "  score_mod = function(s, b, h, q, kv) local far = abs(q - kv)\n"
            "    return s + bias[{h, min(far, 63)}] * log2(far + 1) end }",
            some, NULL);
  check_for(&forward,
            "return attention { name = 'a', inputs = { bias = { axes = {'h', 'n'} } },\n" /* reads memory */
            "  score_mod = function(s, b, h, q, kv) return s + bias[{h, q - kv + q_len}] end }",
            some, NULL);
  check_for(&forward,
            "return attention { name = 'a', inputs = { bias = { axes = {'h', 64} } },\n"
            "  score_mod = function(s, b, h, q, kv)\n"
            "    return s + bias[{h, min(q + kv, 63)}] * log2(q + kv + 1) end }",
            none, NULL);
  check_for(&forward,
            "return attention { name = 'a',\n"
            "  score_mod = function(s, b, h, q, kv) return s + exp2(-h) * (kv - q) end }",
            none, NULL);
}

/* Over a grid, one that depends only on kv - q along each axis has a table, and its gradients are sums by displacement, in sm90
 * alone; that of a number which is no function of displacements has neither. Where it is just added to the dot product, forward's
 * sums begin at it. */
static void test_displacement_term(void **state) {
  (void)state;
  const char *const
      terms[] = {"has_displacement_term = true;", "displacement_term(", "Origin q, const Displacement &kv", NULL},
      *const score[] = {"dot + term;", NULL}, *const sums[] = {"parameter_sums = 1;", "add_distance(", NULL},
      *const none[] = {"has_displacement_term = false;", NULL},
      *const added[] = {"adds_displacement_term = true;", NULL},
      *const apart[] = {"has_displacement_term = true;", "adds_displacement_term = false;", NULL};
  const char *relative =
      "return attention { name = 'a', grid = {'y', 'x'}, inputs = { bias = { axes = {'h', 9, 31}, grad = true } },\n"
      "  score_mod = function(s, b, h, q, k)\n"
      "    return s + bias[{h, (k.y - q.y) // 2 + 4, min(k.x - q.x, 15) + 15}] end }";
  const char *absolute =
      "return attention { name = 'a', grid = {'y', 'x'}, inputs = { bias = { axes = {'h', 9, 31}, grad = true } },\n"
      "  score_mod = function(s, b, h, q, k) return s + bias[{h, k.y - q.x, k.x - q.x + 15}] end }";
  const char *capped =
      "return attention { name = 'a', grid = {'y', 'x'}, inputs = { bias = { axes = {'h', 9, 31} } },\n"
      "  score_mod = function(s, b, h, q, k) return 30 * tanh((s + bias[{h, k.y - q.y + 4, k.x - q.x + 15}]) / 30) end "
      "}";
  luattn_target t = target;
  t.arch = 90;
  t.pass = LUATTN_FORWARD;
  check_for(&t, relative, added, NULL);
  check_for(&t, capped, apart, NULL);
  check_for(&t, relative, terms, NULL);
  check_for(&t, relative, score, NULL);
  check_for(&t, absolute, none, NULL);
  t.pass = LUATTN_BACKWARD;
  check_for(&t, relative, terms, NULL);
  check_for(&t, relative, sums, NULL);
  check_for(&t, absolute, LIST("parameter_sums = 8;"), NULL);
  t.family = 1 + (int)LUATTN_SIMT;
  t.dtype = LUATTN_F32;
  check_for(&t, relative, none, NULL);
}

/* A gradient, inlined or called, gets its score's distance term as an argument, and also uses it in its own
 * sums. */
static void test_distance_term_of_gradient(void **state) {
  (void)state;
#define BIAS(more)                                                                          \
  "return attention { name = 'a', inputs = { bias = { axes = {'h', 64}, grad = true } },\n" \
  "  score_mod = function(s, b, h, q, kv) local far = abs(q - kv)\n"                        \
  "    return " more "(s + bias[{h, min(far, 63)}] * log2(far + 1)) end }"
#define TABLE(before, score)                                                             \
  "return attention { name = 'a', inputs = { bias = { axes = {'h', 'n'} },\n"            \
  "    t = { axes = {'h'}, grad = true } },\n"                                           \
  "  score_mod = function(s, b, h, q, kv) local far = bias[{h, q - kv + q_len}] " before \
  "\n"                                                                                   \
  "    return " score " end }"
  const char *const some[] = {"has_distance_term = true;", "Position q, Position kv, Real term, Real &prob", "+ term",
                              NULL};
  const char *const called[] = {"has_distance_term = true;", "= grad_outlined<with_inputs>(", "Real term)", NULL};
  /* the gradient's factor needs the number as stored, P needs it times log2 e: it is read once */
  const char *const twice[] = {"return t5;", "head.mul_3 * term", "t9 + term", NULL};
  luattn_target backward = target;
  for (int arch = 80; arch <= 90; arch += 10) {
    backward.pass = LUATTN_BACKWARD, backward.arch = arch;
    check_for(&backward, BIAS(""), some, NULL);
    check_for(&backward, BIAS("50 * tanh"), some, NULL);
    check_for(&backward, TABLE("for i = 1, 40 do s = 3 * tanh(s + 0.01 * i) end", "s + far"), called, NULL);
    check_for(&backward, TABLE("", "t[h] * (s + far)"), twice, NULL);
    check_for(&backward, "return attention { name = 'a', score_mod = softcap(50) }", LIST("has_distance_term = false;"),
              NULL);
  }
#undef BIAS
#undef TABLE
}

/* The sm90 backward keeps half of V in registers if grad leaves enough. */
static void test_grad_is_light(void **state) {
  (void)state;
  static const struct {
    const char *mods;
    bool light;
  } cases[] = {{"block_mask = causal()", true},
               {"score_mod = softcap(50)", true},
               {"inputs = { w = { axes = {'h', 'kv'} } },\n" /* w is in Col */
                "score_mod = function(s, b, h, q, kv) return s + w[{h, kv}] end",
                true},
               {"inputs = { w = { axes = {'h', 'n'} } },\n"
                "score_mod = function(s, b, h, q, kv) return s + w[{h, q - kv + q_len}] end",
                true}, /* distance_term provides w */
               {"inputs = { w = { axes = {'h', 'n'} } },\n"
                "score_mod = function(s, b, h, q, kv) return s + w[{h, q + kv}] end",
                false}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char source[512];
    const char *const yes = "grad_is_light = true;", *const no = "grad_is_light = false;";
    luattn_target backward = hopper;
    backward.pass = LUATTN_BACKWARD;
    snprintf(source, sizeof source, "return attention { name = 'a', %s }", cases[i].mods);
    check_for(&backward, source, LIST(cases[i].light ? yes : no), LIST(cases[i].light ? no : yes));
  }
}

/* A softmax from a maximum of `start`, over `sum`. */
#define SOFTMAX_FROM(start, sum)                                \
  "online_func = { name = 'o', online_rowscales = { m = " start \
  ", l = 0 }, final_rowscales = { 'lse' },\n"                   \
  "  online_fwd = function(scores, r, b, h, q)\n"               \
  "    local m = max(r.m, reduce_max(scores))\n"                \
  "    local c, p = exp(r.m - m), exp(scores - m)\n"            \
  "    return p, { m = m, l = r.l * c + reduce_sum(p) }, c\n"   \
  "  end,\n"                                                    \
  "  online_fwd_epilogue = function(o, r) return o / (" sum "), { lse = log(r.l) + r.m } end }"

/* The sm90 forward rescales lazily for a softmax whose maximum has no other use and whose mask value is
 * -inf. */
static void test_lags(void **state) {
  (void)state;
  static const struct {
    const char *mods;
    bool lags;
  } cases[] = {{"block_mask = causal()", true},
               {"score_mod = function(s, b, h, q, kv) return s + 0.5 * (kv - q) end", true},
               {"scalars = { c = 10.0 }, score_mod = function(s, b, h, q, kv) return c * tanh(s) end", true},
               {"inputs = { w = { axes = {'h', 'q'} } },\n"
                "score_mod = function(s, b, h, q, kv) return s + w[{h, q}] end",
                true},
               {"inputs = { w = { axes = {'kv'} } },\n"
                "score_mod = function(s, b, h, q, kv) return s + w[kv] end",
                true},
               {"score_mod = softcap(50)", false}, /* has no running maximum */
               {"online_func = { name = 'o', online_fwd = function(s, r, b, h, q) return sigmoid(s) end }", false},
               {"online_func = { name = 'o', online_rowscales = { m = -1e37, l = 0 },\n"
                "  online_fwd = function(scores, r, b, h, q)\n"
                "    local m = max(r.m, reduce_max(scores))\n"
                "    local c, p = exp(r.m - m), exp(2 * (scores - m))\n"
                "    return p, { m = m, l = r.l * c * c + reduce_sum(p) }, c * c\n"
                "  end,\n"
                "  online_fwd_epilogue = function(o, r, b, h, q) return o / r.l end,\n"
                "  backward = function(dp, p, r, delta, b, h, q, kv, s) return p * dp end }",
                false},
               /* What reads the maximum beyond the scores of most probes; a condition for rows that nothing is kept
                  of. */
               {SOFTMAX_FROM("-1e37", "r.l * (1 + max(r.m - 50, 0))"), false},
               {SOFTMAX_FROM("-1e37", "r.l * (1 + max(r.m - 1e6, 0))"), false},
               {SOFTMAX_FROM("-1e37", "r.l * (1 + max(-100 - r.m, 0))"), false},
               {SOFTMAX_FROM("-1e37", "r.l * (1 + max(r.m - 1e14, 0))"), false}, /* and beyond those of all */
               {SOFTMAX_FROM("-1e9", "where(r.m < -5e8, 1, r.l)"), true},
               {SOFTMAX_FROM("-1e37", "r.l"), true}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char source[768];
    const char *const yes = "lazy_rescaling = true;", *const no = "lazy_rescaling = false;";
    luattn_target sm80 = hopper, half = hopper;
    sm80.arch = 80;
    half.dtype = LUATTN_F16;
    snprintf(source, sizeof source, "return attention { name = 'a', %s }", cases[i].mods);
    check_for(&hopper, source, LIST(cases[i].lags ? yes : no), LIST(cases[i].lags ? no : yes));
    if (i == 1) check_for(&half, source, LIST("has_row_shift = true;", yes), LIST(no));
    check_for(&sm80, source, LIST(no), LIST(yes));
  }
}

/* Checks which soft caps have the polynomial fast path for small scores. */
static void test_small(void **state) {
  (void)state;
  static const struct {
    const char *mods;
    bool has;
  } cases[] = {{"score_mod = softcap(50)", true},
               {"score_mod = function(s, b, h, q, kv) return 30.0 * tanh(s * 0.1) end", true},
               {"score_mod = function(s, b, h, q, kv) return 50.0 * tanh(s / 50.0) + 0.1 * (kv - q) end", false},
               {"scalars = { c = 50.0 }, score_mod = function(s, b, h, q, kv) return c * tanh(s / c) end",
                false}, /* has a running maximum */
               {"block_mask = causal()", false}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char source[512];
    const char *const yes = "has_softcap_poly = true;", *const no = "has_softcap_poly = false;";
    luattn_target wide = hopper, half = hopper, sm80 = hopper;
    half.dtype = LUATTN_F16;
    sm80.arch = 80;
    snprintf(source, sizeof source, "return attention { name = 'a', %s }", cases[i].mods);
    for (int dim = 64; dim <= 256; dim *= 2) {
      const bool has = cases[i].has && dim <= 128;
      wide.head_dim = wide.head_dim_v = dim;
      check_for(&wide, source, LIST(has ? yes : no), LIST(has ? no : yes));
    }
    check_for(&half, source, LIST(no), LIST(yes)); /* uses an accurate tanh */
    check_for(&sm80, source, LIST(no), LIST(yes));
  }
}

/* Checks which specs have P = sigmoid(score), with no other use of the score. */
static void test_sigmoid_weights(void **state) {
  (void)state;
  static const struct {
    const char *mods;
    bool are;
  } cases[] = {{"online_func = sigmoid_attention", true},
               {"inputs = { w = { axes = {'kv'} } }, online_func = sigmoid_attention,\n"
                "score_mod = function(s, b, h, q, kv) return 2.0 * s + w[kv] end",
                true},
#define ONLINE(prob) "online_func = { name = 'b', online_fwd = function(s, r, b, h, q) return " prob " end }"
               {ONLINE("sigmoid(3.0 * s - 1.0)"), true},
               {ONLINE("sigmoid(s) * s"), false},
               {ONLINE("2.0 * sigmoid(s)"), false},
               {ONLINE("sigmoid(-s)"), false}, /* masked elements would have P = 1 */
#undef ONLINE
               {"online_func = relu_attention", false},
               {"score_mod = function(s, b, h, q, kv) return sigmoid(s) end", false}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char source[512];
    const char *const yes = "prob_is_sigmoid = true;", *const no = "prob_is_sigmoid = false;";
    luattn_target half = hopper, sm80 = hopper;
    half.dtype = LUATTN_F16;
    sm80.arch = 80;
    snprintf(source, sizeof source, "return attention { name = 'a', %s }", cases[i].mods);
    check_for(&hopper, source, LIST(cases[i].are ? yes : no), LIST(cases[i].are ? no : yes));
    check_for(&half, source, LIST(cases[i].are ? yes : no), LIST(cases[i].are ? no : yes));
    check_for(&sm80, source, LIST(no), LIST(yes));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_softmax_choices),
      cmocka_unit_test(test_bounded_scores),
      cmocka_unit_test(test_tiles_without_weight),
      cmocka_unit_test(test_sum_in_use_is_not_deferred),
      cmocka_unit_test(test_mask_by_inf_is_refused),
      cmocka_unit_test(test_mask_by_zero),
      cmocka_unit_test(test_score_reads),
      cmocka_unit_test(test_who_reads),
      cmocka_unit_test(test_lines),
      cmocka_unit_test(test_block_of_tile),
      cmocka_unit_test(test_bounds_by_constant),
      cmocka_unit_test(test_distance_term),
      cmocka_unit_test(test_displacement_term),
      cmocka_unit_test(test_distance_term_of_gradient),
      cmocka_unit_test(test_lags),
      cmocka_unit_test(test_grad_is_light),
      cmocka_unit_test(test_small),
      cmocka_unit_test(test_sigmoid_weights),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
