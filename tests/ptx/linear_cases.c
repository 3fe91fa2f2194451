/* linear_cases.c: see linear_cases.h. */
#include "tests/ptx/linear_cases.h"

#include <string.h>

call linear_case(const linear_kernel *kernel, gates g, int tokens) {
  return (call){.kernel = *kernel,
                .gates = g,
                .most_write = strcmp(kernel->update, "DeltaRule") == 0 ? 1 : 0,
                .heads = 1,
                .heads_v = 1,
                .entries = 1,
                .tokens = {tokens},
                .has_first = true,
                .has_last = true};
}
call linear_case_of_two(const linear_kernel *kernel, gates g, int tokens) {
  call c = linear_case(kernel, g, tokens);
  c.entries = 2, c.tokens[1] = tokens;
  return c;
}
call linear_packed_case(const linear_kernel *kernel, gates g, int heads, int heads_v) {
  static const int tokens[] = {0, 65, 3, 64, 0, 130, 1}, pool[] = {3, 9, 1, 4, 7, 2, 6};
  call c = linear_case(kernel, g, 0);
  c.kernel.packed = true, c.wide_rows = true;
  c.heads = heads, c.heads_v = heads_v, c.entries = 7;
  memcpy(c.tokens, tokens, sizeof tokens);
  memcpy(c.pool, pool, sizeof pool);
  c.poisoned[2] = c.poisoned[5] = true;
  return c;
}
call linear_alike_case(const linear_kernel *kernel, int i) {
  call c = linear_case(kernel, NONE, 200);
  c.keys = i % 2 ? ALIKE : RANDOM_KEYS, c.most_write = i < LINEAR_ALIKE_CALLS / 2 ? 1 : 2;
  return c;
}

void linear_pack(call *c, int last) {
  const int tokens[] = {0, 65, 300, last};
  c->kernel.packed = true, c->entries = 4;
  memcpy(c->tokens, tokens, sizeof tokens);
}
void linear_set_dims(call *c, int k_dim, int v_dim, int v_block) {
  c->kernel.k_dim = k_dim, c->kernel.v_dim = v_dim, c->kernel.v_block = v_block;
}
