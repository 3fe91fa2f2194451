#include "gen/analysis/linear/describe_linear.h"

void describe_linear(const derived_linear *d, text *out) {
  static const char *const decays[] = {"there is none", "the same at every token: of a value head",
                                       "one a token: it does not depend on d",
                                       "one a token and channel: it depends on d"};
  const linear_class *c = &d->class;
  text_add(out, "class L%d\n", (int)c->number);
  text_add(out, "  decay: %s\n", decays[c->decay]);
  text_add(out, "  write: k (%sv)'%s\n", d->hook[LINEAR_WRITE].given ? "w " : "",
           c->writes_channels ? ", w one a channel of v: update.write depends on d" : "");
  text_add(out, "  read: %s\n",
           !c->reads       ? "nothing; there is no update.read"
           : c->reads_keys ? "by k times a factor of the token"
                           : "by a vector of its own: update.read is no multiple of k");
  if (c->reads) text_add(out, "  erase: along %s\n", c->erases ? "update.erase" : "k; there is no update.erase");
  if (c->reads) text_add(out, "  reads the state %s its decay\n", c->before ? "before" : "after");
  if (c->normalizes) text_add(out, "  normalised: the state has one more channel of v, which is always 1\n");
}
