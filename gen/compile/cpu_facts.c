#include "gen/compile/cpu_facts.h"

#include <stdio.h>
#include <string.h>

#include "abi/kernel_facts.h"
#include "common/host.h"
#include "gen/compile/fill_manifest.h"
#include "gen/compile/pipeline.h"

typedef struct facts_call {
  const luattn_spec *spec;
  const luattn_target *target;
  bool relaxed;
  image_manifest *out;
  char *why;
  size_t size;
} facts_call;

static void describe_declared(const compilation *c, image_manifest *out) {
  const luattn_target *t = &c->target;
  memset(out, 0, sizeof *out);
  out->pass = t->pass;
  out->dtype = t->dtype;
  out->head_dim = (uint32_t)t->head_dim;
  out->head_dim_v = (uint32_t)t->head_dim_v;
  out->wants = t->pass == LUATTN_BACKWARD ? t->wants : 0;
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks) out->name = t->name != 0;
#include "abi/kernel_facts.def"
  out->max_len = INT64_C(1) << 30; /* the CPU path's limit */
  if (c->spec.traced.most_len > 0 && c->spec.traced.most_len < out->max_len) out->max_len = c->spec.traced.most_len;
  manifest_fill_declared(c, out);
}

/* Keeps only the requirements on arguments. */
static void take_out_code(image_manifest *m) {
  m->arch = 0;
  memset(m->arch_suffix, 0, sizeof m->arch_suffix);
  m->num_entries = m->num_stats = 0;
  m->second_code = m->draws_tiles = m->can_split = m->is_ptx = m->reads_ahead = 0;
  m->deterministic = 1;
  m->on_cpu = 1;
}

static luattn_status facts(compilation *c, const facts_call *given, luattn_error *err) {
  if (given->relaxed) {
    describe_declared(c, given->out);
  } else {
    TRY(plan_start(&c->spec, &c->target, &c->at.plan, err));
    TRY(pipeline_source(c, err));
    *given->out = c->at.info;
  }
  TRY(compilation_memory(c, err));
  take_out_code(given->out);
  snprintf(given->why, given->size,
           "cpu: tiles of 64 x 64 in double precision; nothing is compiled\narguments: as %s%s take them\n",
           given->relaxed ? "luattn_cpu_forward and luattn_cpu_backward" : "kernels of family ",
           given->relaxed ? "" : kernel_family_name(given->out->family));
  return LUATTN_OK;
}

static luattn_status within(void *arguments, luattn_error *err) {
  const facts_call *given = arguments;
  compilation *c;
  luattn_status status = compilation_open(given->spec, given->target, &c, err);
  if (status == LUATTN_OK) status = facts(c, given, err);
  compilation_close(c);
  if (status == LUATTN_OK) fail_clear(err); /* other tiles may have failed first */
  return status;
}

luattn_status cpu_facts(const luattn_spec *spec, const luattn_target *target, bool relaxed, image_manifest *out,
                        char *why, size_t size, luattn_error *err) {
  luattn_target on_its_arch = *target;
  if (family_arch(target->family) != 0) on_its_arch.arch = family_arch(target->family);
  return host_run(within, &(facts_call){spec, &on_its_arch, relaxed, out, why, size}, err);
}
