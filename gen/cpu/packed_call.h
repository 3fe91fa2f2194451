/* packed_call.h: computes packed sequences on the CPU, one after another. */
#ifndef LUATTN_GEN_CPU_PACKED_CALL_H
#define LUATTN_GEN_CPU_PACKED_CALL_H

#include "luattn/compiler.h"

/* A pass, with arguments of this version that a packed kernel's checks have passed (runtime/call/args.h), so that only
 * what these cannot see is checked: the values of cu_seqlens. Errors: LUATTN_INVALID, LUATTN_NO_MEMORY; nothing is
 * written before these values are known to be right. */
luattn_status cpu_packed_forward(const luattn_spec *spec, const luattn_args *args, luattn_error *err);
/* Forward, and tangents: arguments that args_fill and tangents_check have passed. */
luattn_status cpu_packed_forward_jvp(const luattn_spec *spec, const luattn_args *args, const luattn_tangents *tangents,
                                     luattn_error *err);
/* The weights of V [sequences, heads, longest q_len, longest kv_len], 0 past a sequence's ends; args->o, lse and saved
 * may be NULL. */
luattn_status cpu_packed_weights(const luattn_spec *spec, const luattn_args *args, const DLTensor *weights,
                                 luattn_error *err);
/* Gradients of inputs and scalars are added up over the sequences in double precision. */
luattn_status cpu_packed_backward(const luattn_spec *spec, const luattn_args *args, luattn_error *err);
/* Tangents of gradients: args as tangents_fill takes them. */
luattn_status cpu_packed_backward_jvp(const luattn_spec *spec, const luattn_args *args, const luattn_tangents *tangents,
                                      luattn_error *err);

#endif
