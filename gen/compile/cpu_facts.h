/* cpu_facts.h: describes a kernel of an engine on the CPU, and checks arguments against what a GPU kernel
 * would require. */
#ifndef LUATTN_GEN_CPU_FACTS_H
#define LUATTN_GEN_CPU_FACTS_H

#include <stdbool.h>

#include "abi/manifest.h"
#include "luattn/compiler.h"

/* Plans and lowers for the target, as luattn_compile does before NVRTC, and describes the result without its
 * code. Errors: those of luattn_compile up to there. `relaxed`: plans nothing, and describes the spec's
 * declarations. why[size]: for people, as luattn_compile_report.plan. */
luattn_status cpu_facts(const luattn_spec *spec, const luattn_target *target, bool relaxed, image_manifest *out,
                        char *why, size_t size, luattn_error *err);

#endif
