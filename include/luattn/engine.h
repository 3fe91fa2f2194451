/* engine.h: the convenience layer. Takes kernels from packs or compiles them on first use, keeps them, and launches
 * them. Links Lua; loads NVRTC and libcuda at run time, except on the CPU (LUATTN_CPU). */
#ifndef LUATTN_ENGINE_H
#define LUATTN_ENGINE_H

#include "luattn/batch.h"
#include "luattn/compiler.h"
#include "luattn/pack.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct luattn_engine luattn_engine;

/* Receives one line (no line break) for each kernel that the engine has compiled or loaded: spec, pass, type, head
 * dims, where it came from, and how long that took. It is called by the thread that asked for the kernel, or by one of
 * luattn_prepare's, perhaps by several at once, and must not call this engine. It returns: an exception that leaves it,
 * or a longjmp, would leave a lock taken. */
typedef void luattn_log(void *user, const char *line);

/* luattn_engine_options.device: runs on the CPU. The calls below are the same as on a GPU, except that
 *   - tensors are in host memory (kDLCPU), stream is NULL, and a call returns when its outputs are written. No
 *     workspace is needed: its size is 0, and luattn_args.workspace is ignored; a running call takes its memory from
 *     the spec's luattn_allocator;
 *   - it computes in double precision, whatever the tensors' type, on luattn_args.num_threads threads, and gives the
 *     same bits in every run;
 *   - neither libcuda nor NVRTC is loaded, nothing is compiled, and cache_dir, nvrtc, packs, never_compile, no_tuned
 *     and lengths have no effect. The first request for a kernel plans it, which takes some milliseconds;
 *   - luattn_engine_driver returns NULL.
 * Arguments that a GPU of compute capability 8.0 refuses (9.0 for packed sequences, and if options.family asks for sm90
 * kernels) are refused with the same messages: types other than the kernel's, strides, alignments, head dims and
 * lengths, lse and saved in another layout than a kernel writes, and specs that no kernel computes. So a call that runs
 * on the CPU also runs on such a GPU, if its memory suffices. cpu_relaxed lifts these checks.
 * Packed sequences are computed one after another. The contents of cu_seqlens are checked, and no sequence may be
 * longer than max_seqlen. */
#define LUATTN_CPU (-1)

typedef struct luattn_engine_options {
  size_t struct_size;
  int device;            /* number of a GPU, or LUATTN_CPU */
  const char *cache_dir; /* as in luattn_target */
  int family;            /* as in luattn_target, for every kernel of the engine, which is then that for all lengths
                          * (luattn_args.decode); 0: the plan chooses */
  int no_tuned;          /* 1: stored tuning results (luattn tune) are not used */
  int lengths; /* 0: each call gets tiles for its lengths; else 1 + luattn_lengths: every call gets the tiles of this
                * class */
  /* Searched first, in this order, by the spec's hash; they must outlive the engine. Kernels that no pack holds are
   * compiled. */
  const luattn_pack *const *packs;
  size_t num_packs;
  int never_compile; /* 1: a kernel that no pack holds is an error, LUATTN_UNSUPPORTED; neither NVRTC nor the cache
                      * is used */
  int deterministic; /* 1: every backward gives the same bits in every run, and every entry in decode the same among any
                      * others, as luattn_target.deterministic, if the batch has the same kernel: max_seqlen_q and
                      * max_seqlen_k choose it */
  const char *nvrtc; /* as in luattn_target */
  int cpu_relaxed; /* 1, with LUATTN_CPU: accepts what luattn_cpu_forward and luattn_cpu_backward accept, in any mixture
                    * of types, with any strides and head dims, and with their messages; a GPU may refuse such a call.
                    * No packed sequences. LUATTN_INVALID with a GPU */
  luattn_log *log; /* or NULL. Not called on the CPU, where nothing is compiled */
  void *log_user;
} luattn_engine_options;

/* Thread safe. options may be NULL. */
LUATTN_API luattn_status luattn_engine_open(const luattn_engine_options *options, luattn_engine **engine,
                                            luattn_error *err);
LUATTN_API void luattn_engine_close(luattn_engine *engine);            /* NULL is fine */
LUATTN_API luattn_driver *luattn_engine_driver(luattn_engine *engine); /* NULL on the CPU */

/* Returns the kernel for these arguments, which the engine owns, and compiles or loads it on first use. The engine
 * reads dtype and head dims from args, and keeps one kernel for each (spec, pass, dtype, head dims, wants, and what
 * else of a luattn_target the arguments ask for). If the plan has different tiles for short and long lengths
 * (luattn_lengths; for few queries by rows of a kv head), it keeps one for each class, and compiles it when it is first
 * needed. Backward computes the outputs that args provides: dq, dk, dv and scalar_grads that are not NULL, and input
 * grads with a data pointer. Over keys in pages or a cache, an input of dtype any that args lack counts as float32:
 * luattn_append takes the kernel if no mod of k and v reads it, and a launch refuses it. The spec must outlive the
 * engine, or be forgotten before it is freed (luattn_engine_forget). */
LUATTN_API luattn_status luattn_engine_kernel(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                              const luattn_args *args, const luattn_kernel **kernel, luattn_error *err);

/* The same, and also returns the reasons for its tiles: luattn_compile_report.plan, valid as long as the
 * kernel. */
LUATTN_API luattn_status luattn_engine_plan(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                            const luattn_args *args, const char **plan, luattn_error *err);

/* Writes at most `size` bytes, with a final 0: in one line which of forward's kernels these arguments take, that for
 * few queries or that for all lengths (luattn_args.decode), why, how long each is predicted to take, and what a
 * luattn_batch would change. Of a spec over a grid of several axes: which pair of boxes a call of either pass takes that
 * names none, why, and whether it was tuned. An empty text where there is no choice: other backward calls, float32 and
 * float64, the CPU. */
LUATTN_API luattn_status luattn_engine_choice(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                              const luattn_args *args, char *text, size_t size, luattn_error *err);

/* Unloads the spec's kernels, after which it may be freed before the engine; results of luattn_engine_kernel and
 * luattn_engine_plan for it become invalid. No other call with this spec and engine may be running, no launch of the
 * spec may be in flight, and a CUDA graph that contains one must not be launched again. A spec without kernels in the
 * engine is accepted; a spec that is used again is compiled again. Errors: LUATTN_INVALID (one of its kernels is being
 * compiled). */
LUATTN_API luattn_status luattn_engine_forget(luattn_engine *engine, const luattn_spec *spec, luattn_error *err);

/* A kernel that will be needed. head_dim_v 0: equals head_dim. wants: the gradients that launches will ask for; 0: all
 * of the spec's gradients. */
typedef struct luattn_request {
  const luattn_spec *spec;
  luattn_pass pass;
  luattn_dtype dtype;
  int head_dim, head_dim_v;
  unsigned wants;
} luattn_request;
/* Called after each kernel, by one thread at a time, which may not be the caller's, in the process's locale and with
 * the caller's floating-point environment. */
typedef void luattn_progress(void *user, size_t done, size_t count);

/* Compiles or loads kernels before the first launch needs them, for short and for long lengths if their tiles differ,
 * on `threads` threads (0: one per processor). progress may be NULL. Stops at the first failure and keeps the kernels
 * that are ready. */
LUATTN_API luattn_status luattn_prepare(luattn_engine *engine, const luattn_request *requests, size_t num_requests,
                                        int threads, luattn_progress *progress, void *user, luattn_error *err);

/* A launch to come. args: its shapes, types, batch, and what else luattn_forward or luattn_backward would be given;
 * data and workspace are not read, and may be NULL. */
typedef struct luattn_call {
  size_t struct_size;
  const luattn_spec *spec;
  luattn_pass pass;
  const luattn_args *args;
} luattn_call;
/* The same for the kernels that these launches will use, whatever they are: for few queries, keys in pages, packed
 * sequences, parts of a whole, large scores, inputs of any type. Launches of the same arguments then compile nothing;
 * neither do those of other lengths in the same classes: luattn_lengths, and for few queries up to LUATTN_DECODE_TILE
 * rows of a kv head, up to LUATTN_DECODE_MANY, and more. */
LUATTN_API luattn_status luattn_prepare_calls(luattn_engine *engine, const luattn_call *const *calls, size_t num_calls,
                                              int threads, luattn_progress *progress, void *user, luattn_error *err);

/* luattn_forward and luattn_backward call luattn_engine_kernel, then luattn_launch. args->workspace needs the size that
 * luattn_engine_workspace_size returns for the lengths of this launch: if short and long lengths have different tiles,
 * a shorter launch may need a few hundred bytes more. The first launch of a class of lengths may compile or load a
 * kernel, which is not allowed during a graph capture: call luattn_prepare before the capture, or set
 * luattn_engine_options.lengths. luattn_prepare sees no lengths, and makes no decode kernels, which an engine may
 * choose for few queries (luattn_args.decode), and none for what luattn_args.batch has: luattn_prepare_calls does. */
LUATTN_API luattn_status luattn_engine_workspace_size(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                                      const luattn_args *args, size_t *size, luattn_error *err);
LUATTN_API luattn_status luattn_forward(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                                        void *stream, luattn_error *err);
LUATTN_API luattn_status luattn_backward(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                                         void *stream, luattn_error *err);

/* luattn_forward, and the tangents of o and lse along args->tangents: luattn_launch_jvp with the engine's kernel. On a GPU
 * that is a kernel of its own for each set of tangents (luattn_target.tangents), compiled on first use. args->workspace
 * needs the size that luattn_forward_jvp_workspace_size returns. */
LUATTN_API luattn_status luattn_forward_jvp_workspace_size(luattn_engine *engine, const luattn_spec *spec,
                                                           const luattn_args *args, size_t *size, luattn_error *err);
LUATTN_API luattn_status luattn_forward_jvp(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                                            void *stream, luattn_error *err);

/* Tangents of gradients along args->tangents, as luattn_cpu_backward_jvp computes them, which an engine on the CPU calls.
 * On a GPU q, k, v, dout and all that args->tangents has besides inputs and scalars are on the device; sequences may be
 * packed; the gradients themselves are luattn_backward's. The kernel is one of its own for each set of tangents, compiled on
 * first use. args->workspace needs the size that luattn_backward_jvp_workspace_size returns. */
LUATTN_API luattn_status luattn_backward_jvp_workspace_size(luattn_engine *engine, const luattn_spec *spec,
                                                            const luattn_args *args, size_t *size, luattn_error *err);
LUATTN_API luattn_status luattn_backward_jvp(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                                             void *stream, luattn_error *err);

/* The weights of V that luattn_forward uses for these arguments, as luattn_launch_weights writes them, for tests and
 * pictures. Compiles a kernel of its own on first use (luattn_target.weights), of the simt family whatever
 * luattn_engine_options.family is. args->workspace needs the size that luattn_weights_workspace_size returns. Errors
 * besides those of luattn_forward: LUATTN_UNSUPPORTED (keys in pages; never_compile). */
LUATTN_API luattn_status luattn_weights_workspace_size(luattn_engine *engine, const luattn_spec *spec,
                                                       const luattn_args *args, size_t *size, luattn_error *err);
LUATTN_API luattn_status luattn_weights(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                                        const DLTensor *weights, void *stream, luattn_error *err);

#ifdef __cplusplus
}
#endif
#endif
