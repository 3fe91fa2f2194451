/* cpu_facts.h: what a kernel of an engine on the CPU says of itself, and holds arguments against: what one
 * for a GPU would. */
#ifndef LUATTN_GEN_CPU_FACTS_H
#define LUATTN_GEN_CPU_FACTS_H

#include <stdbool.h>

#include "abi/manifest.h"
#include "luattn/compiler.h"

/* Plans and lowers for the target, as luattn_compile does before NVRTC, and describes the outcome less all
 * code. Errors: those of luattn_compile up to there. `relaxed`: plans nothing, and describes what the spec
 * declares. why[size]: for people, as luattn_compile_report.plan. */
luattn_status cpu_facts(const luattn_spec *spec, const luattn_target *target, bool relaxed, image_manifest *out,
                        char *why, size_t size, luattn_error *err);

#endif
