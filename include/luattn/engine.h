/* engine.h: the convenience layer. Takes kernels from packs or compiles them on first use, keeps them, and launches them. Links Lua;
 * NVRTC and libcuda at run time, and on the CPU (LUATTN_CPU) neither. */
#ifndef LUATTN_ENGINE_H
#define LUATTN_ENGINE_H

#include "luattn/batch.h"
#include "luattn/compiler.h"
#include "luattn/pack.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct luattn_engine luattn_engine;

/* luattn_engine_options.device: the CPU. The calls below are the same as on a GPU, but that
 *   - tensors are in host memory (kDLCPU), stream is NULL, and a call returns when its outputs are written. No workspace is needed:
 *     its size is 0, and luattn_args.workspace is not looked at; a call takes memory of the spec's luattn_allocator while it runs;
 *   - it computes in double precision, whatever the tensors' type, on luattn_args.num_threads threads, and gives the same bits in
 *     every run;
 *   - nothing is loaded or compiled, neither libcuda nor NVRTC, and cache_dir, nvrtc, packs, never_compile, no_tuned and lengths
 *     decide nothing. A kernel is planned when it is first asked for, which takes some milliseconds;
 *   - luattn_engine_driver gives NULL.
 * Arguments that a GPU of compute capability 8.0 refuses (9.0 for packed sequences, and where options.family asks for its kernels) are refused in the same
 * words: types that are not as the kernel's, strides, alignments, head dims and lengths, lse and saved that are not as a kernel
 * writes them, and specs that no kernel computes. So what runs here runs there, but for memory. cpu_relaxed lifts that.
 * Packed sequences are computed one after the other; what is in cu_seqlens is checked, and no sequence may be longer than
 * max_seqlen says. */
#define LUATTN_CPU (-1)

typedef struct luattn_engine_options {
  size_t struct_size;
  int device;            /* number of a GPU, or LUATTN_CPU */
  const char *cache_dir; /* as in luattn_target */
  int family;            /* as in luattn_target, for every kernel of the engine; 0: the plan chooses */
  int no_tuned;          /* 1: tiles that were measured and remembered (luattn tune) are not used */
  int lengths;           /* 0: tiles by the lengths of each call; else 1 + luattn_lengths: the tiles of this class for every call */
  /* Searched first, in this order, by the spec's hash; they must outlive the engine. Kernels that are in none are compiled. */
  const luattn_pack *const *packs;
  size_t num_packs;
  int never_compile; /* 1: a kernel that is in no pack is LUATTN_UNSUPPORTED; neither NVRTC nor the cache is used */
  int deterministic; /* 1: every backward gives the same bits in every run, as luattn_target.deterministic */
  const char *nvrtc; /* as in luattn_target */
  int cpu_relaxed;   /* 1, with LUATTN_CPU: arguments and specs are what luattn_cpu_forward and luattn_cpu_backward take, in any
                      * mixture of types, with any strides and head dims, and messages are theirs; a GPU may refuse them. No packed
                      * sequences. With a GPU LUATTN_INVALID */
} luattn_engine_options;

/* Thread safe. options may be NULL. */
LUATTN_API luattn_status luattn_engine_open(const luattn_engine_options *options, luattn_engine **engine, luattn_error *err);
LUATTN_API void luattn_engine_close(luattn_engine *engine); /* NULL is fine */
LUATTN_API luattn_driver *luattn_engine_driver(luattn_engine *engine); /* NULL on the CPU */

/* The kernel for these arguments, compiled or loaded on first use; owned by the engine. The engine reads dtype and head dims
 * from args, and keeps one kernel for each (spec, pass, dtype, head dims, wants); two where the plan has other tiles for
 * short lengths than for long ones (luattn_lengths), the second compiled when it is first needed. Backward computes what
 * args has room for: dq, dk, dv, scalar_grads and the grads with a data pointer that are not NULL are the wants. The spec
 * must outlive the engine, or be forgotten before it is freed (luattn_engine_forget). */
LUATTN_API luattn_status luattn_engine_kernel(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                              const luattn_args *args, const luattn_kernel **kernel, luattn_error *err);

/* The same, and the reasons for its tiles: luattn_compile_report.plan, valid as long as the kernel. */
LUATTN_API luattn_status luattn_engine_plan(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                            const luattn_args *args, const char **plan, luattn_error *err);

/* Unloads the spec's kernels, after which it may be freed before the engine; results of luattn_engine_kernel and
 * luattn_engine_plan for it become invalid. No call with this spec and engine may be under way, and no launch of it may
 * be in flight, nor a CUDA graph with one be launched again. A spec of which the engine has no kernels is accepted; one that
 * is used again is compiled again. Errors: LUATTN_INVALID (one of its kernels is being compiled). */
LUATTN_API luattn_status luattn_engine_forget(luattn_engine *engine, const luattn_spec *spec, luattn_error *err);

/* A kernel that will be needed. head_dim_v 0: as head_dim. wants: the gradients that launches will ask for; 0: all there are. */
typedef struct luattn_request {
  const luattn_spec *spec;
  luattn_pass pass;
  luattn_dtype dtype;
  int head_dim, head_dim_v;
  unsigned wants;
} luattn_request;
/* After each kernel, by one thread at a time, not always the caller's: in the process's locale, with the caller's floating-point
 * environment. */
typedef void luattn_progress(void *user, size_t done, size_t count);

/* Compiles or loads kernels, for short and for long lengths where they differ, before the first launch needs them, on
 * `threads` threads (0: as many as there are processors). progress may be NULL. Stops at the first failure; kernels that are ready
 * stay. */
LUATTN_API luattn_status luattn_prepare(luattn_engine *engine, const luattn_request *requests, size_t num_requests, int threads,
                                        luattn_progress *progress, void *user, luattn_error *err);

/* luattn_engine_kernel, then luattn_launch. args->workspace as luattn_engine_workspace_size says, for the lengths of this
 * launch: where short and long ones have different tiles, a shorter launch may need a few hundred bytes more.
 * The first launch of a class of lengths may compile or load a kernel, which is not allowed during a graph capture:
 * call luattn_prepare before, or set luattn_engine_options.lengths. */
LUATTN_API luattn_status luattn_engine_workspace_size(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                                      const luattn_args *args, size_t *size, luattn_error *err);
LUATTN_API luattn_status luattn_forward(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args, void *stream,
                                        luattn_error *err);
LUATTN_API luattn_status luattn_backward(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args, void *stream,
                                         luattn_error *err);

#ifdef __cplusplus
}
#endif
#endif
