/* packed_cpu.h: runs packed sequences on the CPU. */
#ifndef LUATTN_CLI_PACKED_CPU_H
#define LUATTN_CLI_PACKED_CPU_H

#include "cli/cli.h"

/* Both passes over packed sequences in double precision, by an engine of the CPU; r's arrays are float64. */
luattn_status packed_run_cpu(const cli_problem *p, bool backward, cli_result *r, luattn_error *err);

#endif
