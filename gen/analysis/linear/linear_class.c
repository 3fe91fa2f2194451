#include "gen/analysis/linear/linear_class.h"

#include "gen/analysis/linear/linear_adjoint.h"

/* Whether what the hook gives differs between tokens. */
static bool by_token(const traced_spec *t, const channel_sums *s) {
  bool is = ir_uses(t->g, s->value, VAR_POS);
  for (int i = 0; i < s->count; i++) is |= ir_uses(t->g, s->of[i], VAR_POS);
  return is;
}

static linear_decay decay_of(const traced_spec *t, const linear_hook *decay) {
  double x;
  if (!decay->given || (ir_is_const(t->g, decay->sums.value, &x) && x == 0)) return LINEAR_DECAY_NONE;
  if (decay->by_channel) return LINEAR_DECAY_CHANNEL;
  return by_token(t, &decay->sums) ? LINEAR_DECAY_TOKEN : LINEAR_DECAY_HEAD;
}

/* Whether r is x times a factor that is the same for all channels of the row. */
static bool is_multiple(const ir *g, ir_ref r, int depth) {
  if (ir_is_var(g, r, VAR_X)) return true;
  const ir_node *n = ir_get(g, r);
  const ir_ref a = n->arg[0], b = n->arg[1];
  const bool same_a = n->nargs > 0 && !ir_uses(g, a, VAR_X) && !ir_uses(g, a, VAR_D);
  const bool same_b = n->nargs > 1 && !ir_uses(g, b, VAR_X) && !ir_uses(g, b, VAR_D);
  if (depth == 0) return false;
  if (n->op == IR_NEG) return is_multiple(g, a, depth - 1);
  if (n->op == IR_DIV) return same_b && is_multiple(g, a, depth - 1);
  return n->op == IR_MUL && ((same_a && is_multiple(g, b, depth - 1)) || (same_b && is_multiple(g, a, depth - 1)));
}

linear_class linear_class_of(const traced_spec *t, const derived_linear *d) {
  linear_class c = {.decay = decay_of(t, &d->hook[LINEAR_DECAY]),
                    .reads = d->hook[LINEAR_READ].given,
                    .erases = d->hook[LINEAR_ERASE].given,
                    .before = t->linear.before,
                    .normalizes = t->linear.normalize,
                    .writes_channels = d->hook[LINEAR_WRITE].by_channel};
  c.reads_keys = c.reads && is_multiple(t->g, d->hook[LINEAR_READ].sums.value, 8);
  const bool by_channel = c.decay == LINEAR_DECAY_CHANNEL;
  c.number = c.erases ? LINEAR_L4 : c.reads ? (by_channel ? LINEAR_L3 : LINEAR_L2) : by_channel ? LINEAR_L1 : LINEAR_L0;
  return c;
}
